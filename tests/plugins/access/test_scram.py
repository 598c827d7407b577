from __future__ import annotations

import pytest
from scramp import ScramClient, ScramException

from penstock.broker.access_control import Accepted, AuthStep, Challenge, Refused
from penstock.plugins.access.scram import (
    METHOD,
    Credentials,
    ScramExchange,
    Users,
    make_credentials,
    parse_credentials,
)

CREDENTIALS = make_credentials("pencil", b"salt of 16 bytes")
USERS = Users({"user": CREDENTIALS})
KEY = "A" * 43 + "="


NO_EXCHANGE = Refused(why=f"not as {METHOD} has it")


def client() -> ScramClient:
    """Return the other side, which knows the password."""
    return ScramClient([METHOD], "user", "pencil")


def run(other: ScramClient, users: Users = USERS) -> AuthStep:
    """Run an exchange and return what it comes to."""
    exchange = ScramExchange(users)
    first = exchange.step(other.get_client_first().encode())
    assert isinstance(first, Challenge)
    assert first.data is not None
    other.set_server_first(first.data.decode())
    return exchange.step(other.get_client_final().encode())


def test_who_knows_the_password_is_let_in_and_knows_the_server() -> None:
    """The last message proves that the server has the user's keys."""
    other = client()
    step = run(other)
    assert isinstance(step, Accepted)
    assert step.username == "user"
    assert step.data is not None
    other.set_server_final(step.data.decode())


def test_a_server_without_the_keys_is_found_out() -> None:
    """The client refuses what another server says."""
    other = client()
    run(other)
    with pytest.raises(ScramException):
        other.set_server_final("v=" + KEY)


def test_the_first_data_may_come_with_connect_or_when_asked_for() -> None:
    """An empty CONNECT is answered by an empty challenge, once."""
    exchange = ScramExchange(USERS)
    assert exchange.step(None) == Challenge()
    assert isinstance(exchange.step(client().get_client_first().encode()), Challenge)
    assert exchange.step(None) == NO_EXCHANGE


@pytest.mark.parametrize(
    ("username", "password", "why"),
    [("user", "pen", "wrong password"), ("stranger", "pencil", "unknown user")],
)
def test_a_wrong_password_and_an_unknown_user_end_alike(
    username: str, password: str, why: str
) -> None:
    """After as many steps, with the same word; only the log knows which it was."""
    assert run(ScramClient([METHOD], username, password)) == Refused(
        why=f"user {username!r}: {why}", username=username
    )


def test_strangers_look_like_users() -> None:
    """A salt of a user's length that stays the same, with the iterations of users."""
    one, same, other = USERS.find("x"), Users({"user": CREDENTIALS}).find("x"), USERS.find("y")
    assert one == same
    assert one.salt != other.salt
    assert len(one.salt) == len(CREDENTIALS.salt)
    assert one.iterations == CREDENTIALS.iterations
    assert isinstance(run(client(), Users({})), Refused)


def test_strangers_look_like_some_user() -> None:
    """Where users differ in iterations and salt, so do those who are none."""
    other = make_credentials("pencil", bytes(40), 5000)
    users = Users({"user": CREDENTIALS, "other": other})
    found = [users.find(f"stranger {number}") for number in range(50)]
    assert {(len(stranger.salt), stranger.iterations) for stranger in found} == {
        (len(user.salt), user.iterations) for user in (CREDENTIALS, other)
    }


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"n,,", b"n,,n=user,r=", b"p=tls-unique,,n=user,r=x"]
)
def test_what_is_no_first_message_is_refused(data: bytes) -> None:
    """Whatever a client sends, the exchange ends in order."""
    assert ScramExchange(USERS).step(data) == NO_EXCHANGE


@pytest.mark.parametrize("data", [b"", b"\xff", b"c=biws,r=x,p=", f"c=biws,r=x,p={KEY}".encode()])
def test_what_is_no_last_message_is_refused(data: bytes) -> None:
    """A proof for another exchange too."""
    exchange = ScramExchange(USERS)
    exchange.step(client().get_client_first().encode())
    assert exchange.step(data) == NO_EXCHANGE


def test_credentials_are_read_as_they_were_written() -> None:
    """In PostgreSQL's form."""
    text = str(CREDENTIALS)
    assert text.startswith(f"{METHOD}$4096:")
    assert "pencil" not in text
    assert parse_credentials(text) == CREDENTIALS


def test_the_keys_are_those_of_the_rfc() -> None:
    """The example of RFC 7677, section 3: a known password gives the known server signature."""
    made = make_credentials("pencil", b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81")
    assert made.iterations == 4096
    assert isinstance(made, Credentials)
    assert isinstance(run(client(), Users({"user": made})), Accepted)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$7$101$c2FsdA==$x",
        f"SCRAM-SHA-1$4096:c2FsdHNhbHRzYWx0$$ {KEY}:{KEY}",
        f"{METHOD}$x:c2FsdHNhbHRzYWx0${KEY}:{KEY}",
        f"{METHOD}$4096:c2FsdHNhbHRzYWx0${KEY}",
        f"{METHOD}$4096:c2FsdHNhbHRzYWx0${KEY}:{KEY}:{KEY}",
        f"{METHOD}$4096:c2Fsd${KEY}:{KEY}",
        f"{METHOD}$4096:c2FsdA==${KEY}:{KEY}",
        f"{METHOD}$4096:c2FsdHNhbHRzYWx0$c2FsdA==:{KEY}",
        f"{METHOD}$4096:c2FsdÄ==${KEY}:{KEY}",
        f"{METHOD}$4095:c2FsdHNhbHRzYWx0${KEY}:{KEY}",
        f"{METHOD}$10000001:c2FsdHNhbHRzYWx0${KEY}:{KEY}",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(ValueError, match=r"SCRAM-SHA-256|iterations"):
        parse_credentials(text)


def test_a_password_that_no_client_can_send_is_refused() -> None:
    """SASLprep forbids control characters (RFC 4013)."""
    with pytest.raises(ValueError, match="SASLprep"):
        make_credentials("\u0007", b"salt of 16 bytes")
