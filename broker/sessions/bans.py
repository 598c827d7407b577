"""Who may not connect for a while, as an operator has said."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple, get_args

from penstock.broker.config.addresses import address_key
from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.broker.operations_contract import LONGEST_BAN_SECONDS, Ban, BanKind

MOST_BANS: Final = 1_000
"""Whom so many do not stop has to be stopped by a firewall or by access control."""


class _Ban(NamedTuple):
    until: float
    reason: str
    by: str


class Bans:
    """Bans by Client Identifier, user name or address.

    They outlive a reload, and end with the program.

    Attributes:
        entries: by kind and value; who connects is looked for only where there are any.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[BanKind, str], _Ban] = {}

    def add(
        self, kind: BanKind, value: str, seconds: float, reason: str, by: str, now: float
    ) -> None:
        """Add a ban, or replace the one that there is; times are in seconds.

        Raises:
            PenstockError: the value is none of its kind, the time is too long or too short, or
                there are too many bans.
        """
        if kind not in get_args(BanKind):
            raise PenstockError(
                f"ban: kind: read {kind!r}; allowed: {', '.join(get_args(BanKind))}"
            )
        if kind == "address" and not _is_address(value):
            raise PenstockError(f"ban: read address {value[:80]!r}; allowed: one of IPv4 or IPv6")
        if not value or len(value.encode(errors="replace")) > MAX_STRING_BYTES:
            raise PenstockError(
                f"ban: read a {kind} of {len(value)} characters; allowed: a name of 1 to "
                f"{MAX_STRING_BYTES} bytes"
            )
        if not 0 < seconds <= LONGEST_BAN_SECONDS:
            raise PenstockError(
                f"ban: seconds: read {seconds:g}; allowed: above 0, {LONGEST_BAN_SECONDS} at most"
            )
        self._drop_ended(now)
        key = _key(kind, value)
        if key not in self.entries and len(self.entries) >= MOST_BANS:
            raise PenstockError(f"ban: there are {MOST_BANS}; allowed: no more; end one first")
        self.entries[key] = _Ban(now + seconds, reason, by)

    def remove(self, kind: BanKind, value: str) -> bool:
        """End a ban; return whether there was one."""
        return self.entries.pop(_key(kind, value), None) is not None

    def all(self, now: float) -> list[Ban]:
        """Return those that have not ended, the next to end first."""
        self._drop_ended(now)
        return [
            Ban(kind, value, round(ban.until - now, 3), ban.reason, ban.by)
            for (kind, value), ban in sorted(self.entries.items(), key=lambda one: one[1].until)
        ]

    def bans(self, kind: BanKind, value: str | None, now: float) -> bool:
        """Say whether somebody is banned by a name or an address; nobody by an empty one."""
        ban = self.entries.get(_key(kind, value)) if value else None
        return ban is not None and now < ban.until

    @staticmethod
    def is_of(kind: BanKind, value: str, name: str | None) -> bool:
        """Say whether a ban's value stands for a name or an address."""
        return name is not None and _key(kind, value) == _key(kind, name)

    def _drop_ended(self, now: float) -> None:
        for key in [key for key, ban in self.entries.items() if ban.until <= now]:
            del self.entries[key]


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _key(kind: BanKind, value: str) -> tuple[BanKind, str]:
    return kind, address_key(value) if kind == "address" else value
