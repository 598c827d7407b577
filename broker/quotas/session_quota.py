"""How many sessions there may be: of the broker, of a user, and from an address.

A client that leaves its session behind may come again under another name, as often as it likes,
and its connections are few at any time: what bounds connections bounds no sessions. So a client
that would get a new one is refused at a limit. One whose session is there is always let in, and a
restart brings back whatever was stored.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.broker.config.addresses import address_key

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.sessions.session import Session


class SessionQuota:
    """Counts the sessions of each user and address, as far as there are limits for them.

    A session counts for the user and the address of its newest connection; one that was restored
    counts for its user alone until its client has come back.

    Invariant: each number in `of_user` and `of_address` is that of the sessions whose
    `counted_user` or `counted_address` is the key; no number is 0.

    Attributes:
        of_user: user name to sessions; clients without one are no user.
        of_address: the same for each address, as `address_key` has it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.of_user: dict[str, int] = {}
        self.of_address: dict[str, int] = {}

    def refusal(self, n_sessions: int, username: str | None, address: str) -> tuple[str, str]:
        """Return which limit allows no further session, and what it allows; ("", "") for none.

        Args:
            n_sessions: that there are.
            username: of the client that wants one.
            address: it comes from; "" where that is not known, as over a Unix socket.
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

    def count(self, session: Session, username: str | None, address: str) -> None:
        """Count a session for the user and the address of its newest connection.

        Args:
            session: new, or counted before for others.
            username: None for none.
            address: of the client; "" where that is not known.
        """
        limits = self._limits
        if limits.sessions_per_user is not None:
            user = username or ""
            if user != session.counted_user:
                _move(self.of_user, session.counted_user, user)
                session.counted_user = user
        if limits.sessions_per_address is not None:
            key = sys.intern(address_key(address)) if address else ""
            if key != session.counted_address:
                _move(self.of_address, session.counted_address, key)
                session.counted_address = key

    def forget(self, session: Session) -> None:
        """Count a session no more: it has ended."""
        _move(self.of_user, session.counted_user, "")
        _move(self.of_address, session.counted_address, "")
        session.counted_user = session.counted_address = ""


def _move(counts: dict[str, int], old: str, new: str) -> None:
    if old:
        n_left = counts[old] - 1
        if n_left:
            counts[old] = n_left
        else:
            del counts[old]
    if new:
        counts[new] = counts.get(new, 0) + 1
