from __future__ import annotations

import pytest

from penstock.broker.errors import ConfigError
from penstock.plugins.access.user_file import parse_users, with_user, without_user

FILE = "# users\nann:1\n\n bob :2\n"


def problems(text: str) -> list[tuple[str, str, str]]:
    """Return (path, read, allowed) of a file of numbers that must be refused."""
    with pytest.raises(ConfigError) as caught:
        parse_users(text, "users", number)
    return [(found.path, found.read, found.allowed) for found in caught.value.problems]


def number(text: str) -> int:
    """Read a secret."""
    if not text.isdecimal():
        raise ValueError("a number")
    return int(text)


def test_users_are_read_line_by_line() -> None:
    """Comments and empty lines say nothing; blanks around a name are no part of it."""
    assert parse_users(FILE, "users", number) == {"ann": 1, "bob": 2}
    assert parse_users("", "users", number) == {}
    assert parse_users("a:1\r\nb:2", "users", number) == {"a": 1, "b": 2}


def test_every_wrong_line_is_told_and_no_secret() -> None:
    """By its number, with what is allowed there."""
    assert problems("ann:1\nbob\n:3\nann:4\neve:hunter2\n") == [
        ("line 2", "no USER:", "USER:SECRET"),
        ("line 3", "no USER:", "USER:SECRET"),
        ("line 4", "user ann again, after line 1", "each user once"),
        ("line 5", "something else for user eve", "a number"),
    ]


def test_a_user_is_replaced_where_it_stands_or_added_at_the_end() -> None:
    """All else stays, comments too."""
    assert with_user(FILE, "bob", "5") == "# users\nann:1\n\nbob:5\n"
    assert with_user(FILE, "eve", "5") == f"{FILE}eve:5\n"
    assert with_user("ann:1", "eve", "5") == "ann:1\neve:5\n"


def test_a_user_is_taken_out() -> None:
    """Or is not there."""
    assert without_user(FILE, "bob") == "# users\nann:1\n\n"
    assert without_user(FILE, "eve") is None
    assert without_user("#ann:1\n", "#ann") is None


@pytest.mark.parametrize("username", ["", " ", " ann", "#ann", "a:b", "a\nb", "a\u2028b"])
def test_a_name_that_a_line_cannot_hold_is_refused(username: str) -> None:
    """It would be read as something else."""
    with pytest.raises(ValueError, match="a user name"):
        with_user("", username, "1")
