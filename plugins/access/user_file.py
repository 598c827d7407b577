"""Files with one user a line: ``USER:SECRET``, as in mosquitto's `password_file`.

Empty lines and lines that begin with ``#`` are ignored. A secret is never part of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.broker.errors import ConfigError, ConfigProblem

T = TypeVar("T")


def parse_users(text: str, file: str, parse_secret: Callable[[str], T]) -> dict[str, T]:
    """Read a file of users.

    Args:
        text: the whole file.
        file: the file's name, for errors.
        parse_secret: parses the text after a user's colon; raises ValueError with what is allowed.

    Returns:
        User name to the result of `parse_secret`, in the order of the file.

    Raises:
        ConfigError: names every line that is wrong.
    """
    users: dict[str, T] = {}
    lines: dict[str, int] = {}
    problems: list[ConfigProblem] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        where = f"line {number}"
        username, colon, secret = line.partition(":")
        username = username.strip()
        if not colon or not username:
            problems.append(ConfigProblem(where, "no USER:", "USER:SECRET"))
        elif username in users:
            read = f"user {username} again, after line {lines[username]}"
            problems.append(ConfigProblem(where, read, "each user once"))
        else:
            try:
                users[username] = parse_secret(secret.strip())
                lines[username] = number
            except ValueError as error:
                read = f"something else for user {username}"
                problems.append(ConfigProblem(where, read, str(error)))
    if problems:
        raise ConfigError(file, problems)
    return users


def with_user(text: str, username: str, secret: str) -> str:
    """Return a file in which a user has this secret; all other lines stay as they are.

    Raises:
        ValueError: the file's format does not allow the user name; says what is allowed.
    """
    if not username.strip() or username != username.strip() or username.startswith("#"):
        raise ValueError("a user name without blanks around it, and no # at its beginning")
    if ":" in username or len(username.splitlines()) != 1:
        raise ValueError("a user name without colon, on one line")
    lines = text.splitlines()
    at = _lines_of(lines, username)
    line = f"{username}:{secret}"
    if at:
        lines[at[0]] = line
    else:
        lines.append(line)
    return "".join(f"{kept}\n" for kept in lines)


def without_user(text: str, username: str) -> str | None:
    """Return a file without a user, or None where it has no such user."""
    lines = text.splitlines()
    at = _lines_of(lines, username)
    if not at:
        return None
    return "".join(f"{line}\n" for index, line in enumerate(lines) if index not in at)


def _lines_of(lines: list[str], username: str) -> list[int]:
    return [
        index
        for index, line in enumerate(lines)
        if not line.startswith("#") and ":" in line and line.partition(":")[0].strip() == username
    ]
