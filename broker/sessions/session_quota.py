"""Limits of the sessions that the broker, a user and an address may have.

A client can leave its session behind and return under another Client Identifier as often as it
likes, with few connections at any time. A limit of connections therefore does not limit sessions.
At a limit, a client that needs a new session is refused. A client whose session exists is always
accepted, and a restart restores every stored session.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from penstock.broker.config.addresses import address_key

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits


class Counted(Protocol):
    """A session, as its quota sees it.

    Attributes:
        counted_user: user for whom it counts; "" for none.
        counted_address: address for which it does; "" for none.
    """

    counted_user: str
    counted_address: str


class SessionQuota:
    """Counts the sessions of each user and address for which there are limits.

    A session counts for the user and the address of its newest connection. A restored session
    counts for its user only, until its client returns.

    Invariant: each number in `of_user` and `of_address` is that of the sessions whose
    `counted_user` or `counted_address` is the key; no number is 0.

    Attributes:
        is_limited: there is a limit for each user or each address, so that sessions are counted.
        of_user: user name to sessions; clients without a user name are not counted.
        of_address: address, as `address_key` gives it, to sessions.
    """

    def __init__(self, limits: Limits) -> None:
        self.change(limits)
        self.of_user: dict[str, int] = {}
        self.of_address: dict[str, int] = {}

    def change(self, limits: Limits) -> None:
        """Have other limits; the caller has all sessions counted anew."""
        self._limits = limits
        self.is_limited = (
            limits.sessions_per_user is not None or limits.sessions_per_address is not None
        )

    def refusal(self, n_sessions: int, username: str | None, address: str) -> tuple[str, str]:
        """Return which limit refuses a further session, and what it allows; ("", "") for none.

        The address is "" where it is not known, as over a Unix socket.
        """
        limits = self._limits
        if limits.sessions is not None and n_sessions >= limits.sessions:
            return "sessions", f"allowed: {limits.sessions} sessions"
        most = limits.sessions_per_user
        if most is not None and username and self.of_user.get(username, 0) >= most:
            return "user_sessions", f"allowed: {most} sessions of a user"
        most = limits.sessions_per_address
        if most is not None and address and self.of_address.get(address_key(address), 0) >= most:
            return "address_sessions", f"allowed: {most} sessions from an address"
        return "", ""

    def count(self, session: Counted, username: str | None, address: str | None) -> None:
        """Count a session for the user and the address of its newest connection.

        The address is "" where it is not known; None leaves it, as of one that is away.
        """
        limits = self._limits
        if limits.sessions_per_user is not None:
            user = username or ""
            if user != session.counted_user:
                move(self.of_user, session.counted_user, user)
                session.counted_user = user
        if limits.sessions_per_address is not None and address is not None:
            key = sys.intern(address_key(address)) if address else ""
            if key != session.counted_address:
                move(self.of_address, session.counted_address, key)
                session.counted_address = key

    def forget(self, session: Counted) -> None:
        """Stop counting a session that has ended."""
        if session.counted_user:
            move(self.of_user, session.counted_user, "")
            session.counted_user = ""
        if session.counted_address:
            move(self.of_address, session.counted_address, "")
            session.counted_address = ""


def move(counts: dict[str, int], old: str, new: str) -> None:
    """Count one that counted for a key for another one; "" is none, and no number stays at 0."""
    if old:
        n_left = counts[old] - 1
        if n_left:
            counts[old] = n_left
        else:
            del counts[old]
    if new:
        counts[new] = counts.get(new, 0) + 1
