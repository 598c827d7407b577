"""Backoff of failed logins, on a virtual clock."""

from __future__ import annotations

import logging

import pytest

from penstock.broker.access_control import NOT_JUDGED, Admittance, ConnectAttempt, Refused
from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Auth, ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions import login_backoff
from penstock.broker.sessions.login_backoff import REPEAT_SECONDS, LoginBackoff
from tests.helpers.access import Access, finish
from tests.helpers.riddle import Riddle
from tests.helpers.virtual import VirtualBroker, VirtualClient

HERE = "192.0.2.1"
ELSEWHERE = "198.51.100.1"
WRONG = ReasonCode.NOT_AUTHORIZED
TOO_SOON = ReasonCode.CONNECTION_RATE_EXCEEDED
FREE = 5
"""`limits.login_failures` as it comes."""


class Passwords(Access):
    """Everybody's password is ``right``."""

    def authenticate(self, attempt: ConnectAttempt) -> Admittance:
        """Judge it."""
        self.attempts.append(attempt)
        if self.error is not None:
            raise self.error
        return attempt.password == b"right" or Refused(why="wrong password")


def log_in(
    broker: VirtualBroker,
    password: str,
    *,
    address: str = HERE,
    username: str = "ann",
    version: int = 5,
) -> int:
    """Return the reason code of a CONNECT."""
    client = VirtualClient(broker, version)
    client.connection.client.remote_address = address
    packet = Connect(
        client_id="c",
        protocol_version=version,
        keep_alive=0,
        username=username,
        password=password.encode(),
    )
    client.send(packet)
    return client.take(ConnAck).reason_code


def guess(broker: VirtualBroker, n_guesses: int, **where: str) -> list[int]:
    """Guess that many different passwords; return the reason codes."""
    passwords = [f"guess {number} {broker.now}" for number in range(n_guesses)]
    return [log_in(broker, password, **where) for password in passwords]  # type: ignore[arg-type]


def broker_with(**limits: float | None) -> tuple[VirtualBroker, Passwords]:
    """Return a broker and what is asked about its clients."""
    access = Passwords()
    return VirtualBroker(Limits(**limits), access=access), access  # type: ignore[arg-type]


def test_after_five_guesses_each_further_one_takes_twice_as_long() -> None:
    """1 s, 2 s, ... up to a minute; what comes too soon is not judged, and prolongs nothing."""
    broker, access = broker_with()
    assert guess(broker, 7) == [WRONG] * FREE + [TOO_SOON] * 2
    assert len(access.attempts) == FREE
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        broker.advance(seconds - 0.5)
        assert guess(broker, 3) == [TOO_SOON] * 3
        broker.advance(0.5)
        assert guess(broker, 2) == [WRONG, TOO_SOON]
    assert log_in(broker, "right") == TOO_SOON
    broker.advance(60)
    assert log_in(broker, "right") == 0
    assert guess(broker, FREE) == [WRONG] * FREE
    assert broker.core.counters.logins_failed == len(access.attempts) - 1
    assert broker.core.counters.logins_not_judged == 2 + 8 * 4 + 1


def test_mqtt_3_1_1_is_told_that_the_server_is_unavailable() -> None:
    """Return code 3, and not 5, which clients take for final."""
    broker, _ = broker_with()
    guess(broker, FREE)
    assert log_in(broker, "right", version=4) == ReasonCode.SERVER_UNAVAILABLE


def test_a_user_is_locked_out_from_nowhere_else() -> None:
    """Nor are the other users of the address; an IPv6 network is one address."""
    broker, _ = broker_with()
    guess(broker, 100)
    assert log_in(broker, "right") == TOO_SOON
    assert log_in(broker, "right", address=ELSEWHERE) == 0
    assert log_in(broker, "right", username="bob") == 0
    guess(broker, FREE, address="2001:db8::1")
    assert log_in(broker, "right", address="2001:db8::2") == TOO_SOON
    assert log_in(broker, "right", address="2001:db8:0:1::1") == 0


def test_an_address_that_guesses_at_many_users_has_one_failure_a_second() -> None:
    """After fifty; who has logged in from there before is not held up by that."""
    broker, access = broker_with()
    assert log_in(broker, "right", username="bob") == 0
    told = [log_in(broker, "x", username=f"user {number}") for number in range(60)]
    assert told == [WRONG] * 50 + [TOO_SOON] * 10
    assert log_in(broker, "right") == TOO_SOON
    assert log_in(broker, "right", username="bob") == 0
    access.attempts.clear()
    for number in range(100):
        broker.advance(0.1)
        log_in(broker, "x", username=f"other {number}")
    assert len(access.attempts) == 10
    assert log_in(broker, "right", address=ELSEWHERE) == 0


def test_a_user_guessed_at_from_many_addresses_is_let_in_at_the_first_attempt() -> None:
    """A new address has one guess then; one that the user is known from has five as before."""
    broker, access = broker_with()
    assert log_in(broker, "right", address=ELSEWHERE) == 0
    for number in range(100):
        guess(broker, 1, address=f"203.0.113.{number}")
    access.attempts.clear()
    assert guess(broker, 3) == [WRONG, TOO_SOON, TOO_SOON]
    broker.advance(59)
    for number in range(100):
        guess(broker, 1, address=f"203.0.114.{number}")
    assert log_in(broker, "right") == TOO_SOON
    assert log_in(broker, "right", address="192.0.2.77") == 0
    assert guess(broker, FREE, address=ELSEWHERE) == [WRONG] * FREE


def test_the_same_wrong_password_is_no_guess() -> None:
    """A device that was set up wrongly keeps no other device of its user and address out."""
    broker, access = broker_with()
    for _ in range(100):
        assert log_in(broker, "stale") == WRONG
        broker.advance(1)
    assert len(access.attempts) == 100 / REPEAT_SECONDS
    assert log_in(broker, "right") == 0
    assert log_in(broker, "stale") == WRONG


def test_the_same_wrong_password_is_no_guess_though_others_of_its_pair_log_in() -> None:
    """Some devices behind one address may still have the old password."""
    broker, _ = broker_with(login_failures_per_address=3, login_failures_per_user=3)
    for _ in range(10):
        assert log_in(broker, "old") == WRONG
        assert log_in(broker, "right") == 0
    assert broker.core.counters.logins_failed == 1
    assert log_in(broker, "wrong", username="bob") == WRONG


def test_a_reload_judges_every_password_anew() -> None:
    """What was wrong may be right."""
    broker, access = broker_with()
    for _ in range(2):
        log_in(broker, "stale")
    broker.core.logins.forget_wrong()
    log_in(broker, "stale")
    assert len(access.attempts) == 2


def test_failures_are_forgotten() -> None:
    """After ten minutes without one."""
    broker, _ = broker_with()
    guess(broker, FREE)
    broker.advance(601)
    assert guess(broker, FREE + 1) == [WRONG] * FREE + [TOO_SOON]


@pytest.mark.parametrize(
    "where", [{"address": ""}, {"address": "", "username": "bob"}], ids=["one user", "two"]
)
def test_who_has_no_address_is_not_counted(where: dict[str, str]) -> None:
    """The permissions of a Unix socket say who may use it."""
    broker, _ = broker_with()
    assert set(guess(broker, 20, **where)) == {WRONG}


def test_a_client_without_a_user_name_guesses_nothing() -> None:
    """And a plugin's fault is not the client's."""
    broker, access = broker_with()
    for _ in range(2 * FREE):
        client = VirtualClient(broker)
        client.connection.client.remote_address = HERE
        client.send(Connect(client_id="c"))
    access.error = ZeroDivisionError()
    assert set(guess(broker, 2 * FREE)) == {WRONG}
    access.error = None
    assert log_in(broker, "right") == 0
    assert broker.core.counters.logins_failed == 0


def test_each_limit_can_be_chosen_or_left_out() -> None:
    """With null there is no such limit."""
    none = {"login_failures_per_address": None, "login_failures_per_user": None}
    broker, _ = broker_with(login_failures=None, **none)
    assert set(guess(broker, 200)) == {WRONG}
    broker, _ = broker_with(login_failures=2, login_backoff_seconds=1.0, **none)
    assert guess(broker, 3) == [WRONG, WRONG, TOO_SOON]
    for _ in range(5):
        broker.advance(1)
        assert guess(broker, 2) == [WRONG, TOO_SOON]
    broker, _ = broker_with(login_failures=None, login_failures_per_address=3)
    assert guess(broker, 4) == [WRONG] * 3 + [TOO_SOON]
    broker, _ = broker_with(login_failures=None, login_failures_per_user=1)
    assert guess(broker, 2) == [WRONG, TOO_SOON]


def test_attempts_at_the_same_time_are_judged_one_by_one() -> None:
    """What waits for its turn is not wanted any more once others have failed."""
    backoff = LoginBackoff(Limits())
    attempts = [backoff.begin(HERE, "ann", b"%d" % number, 0.0) for number in range(20)]
    n_judged = 0
    for number, attempt in enumerate(attempts):
        assert attempt is not None
        if attempt.is_wanted():
            n_judged += 1
            backoff.failed(attempt, b"%d" % number, 0.0)
    assert n_judged == FREE
    late = [backoff.begin(HERE, "ann", b"late %d" % number, 1.0) for number in range(3)]
    assert [attempt.wait if attempt is not None else None for attempt in late] == [0.0, 1.0, 1.0]


def test_an_answer_that_was_not_wanted_is_no_failure() -> None:
    """The plugin says `NOT_JUDGED`."""
    access = Access()
    access.answer = NOT_JUDGED
    broker = VirtualBroker(access=access)
    assert set(guess(broker, 10)) == {TOO_SOON}
    assert broker.core.counters.logins_failed == 0
    assert broker.core.counters.logins_not_judged == 10


@pytest.mark.parametrize("waits", [False, True])
def test_exchanges_of_an_authentication_method_count_too(*, waits: bool) -> None:
    """Whoever the client proves to be, and with no more said than to others."""
    riddle = Riddle()
    riddle.waits = waits
    broker = VirtualBroker(authenticators=[riddle])
    told = []
    for answer in [b"nonsense"] * (FREE + 2) + [b"because"]:
        client = VirtualClient(broker)
        client.connection.client.remote_address = HERE
        properties = {"authentication_method": riddle.method, "authentication_data": answer}
        client.send(Connect(client_id="c", properties=properties))
        finish(client)
        told.append(client.take(ConnAck).reason_code)
    assert told == [WRONG] * FREE + [TOO_SOON] * 3
    assert not client.take_all(Auth)


def test_the_log_says_when_the_next_is_judged(caplog: pytest.LogCaptureFixture) -> None:
    """There are lines for what was judged and for what was not."""
    caplog.set_level(logging.INFO)
    broker, _ = broker_with()
    guess(broker, FREE)
    broker.advance(0.75)
    guess(broker, 1)
    assert "user 'ann': wrong password, from" in caplog.messages[0]
    assert "user 'ann': wrong password; the next is judged in 1 s, from" in caplog.messages[-2]
    not_judged = "user 'ann': not judged: too many failed logins, the next is judged in 1 s, from"
    assert not_judged in caplog.messages[-1]


def test_a_flood_that_is_not_judged_hides_no_wrong_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its lines are of another kind, of which the log counts its own."""
    caplog.set_level(logging.INFO)
    broker, _ = broker_with()
    guess(broker, FREE + 1)
    *judged, not_judged = [record.msg for record in caplog.records]
    assert not_judged not in judged


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many addresses, users and passwords there are; names may be as long as they like."""
    monkeypatch.setattr(login_backoff, "MAX_RECORDS", 50)
    monkeypatch.setattr(login_backoff, "MAX_GOOD", 50)
    backoff = LoginBackoff(Limits())
    for number in range(200):
        address, user = f"10.0.{number}.1", f"user {number}" * 1000
        for password in range(6):
            attempt = backoff.begin(address, user, b"%d" % password, float(number))
            assert attempt is not None
            backoff.failed(attempt, b"%d" % password, float(number))
        known = backoff.begin(f"10.1.{number}.1", user, b"right", float(number))
        assert known is not None
        backoff.succeeded(known)
        backoff.check_invariants()
