"""Discovery finds the servers: the only one, the master of sentinels, or the cluster's masters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import RedisError

from penstock.broker.errors import PenstockError
from penstock.plugins.redis.errors import EngineAwayError, EngineStartError
from penstock.plugins.redis.login import CONNECT_SECONDS, Address, Login, is_away, named
from penstock.plugins.redis.routes import N_SLOTS, Range

_ASK_SECONDS: Final = (1.0, CONNECT_SECONDS)
"""How long each server is waited for in the first and the second round: another one may be quicker,
or all may be slow."""


def listed(addresses: Sequence[Address]) -> str:
    """Return addresses as users write them."""
    return ", ".join(map(named, addresses))


class OneServer:
    """There is but one."""

    is_cluster = False

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self) -> list[Range]:
        """Return the only server."""
        return [(0, 0, self._address)]


@dataclass(frozen=True, slots=True)
class RedisSentinels:
    """Programs of Redis that watch a master and its replicas."""

    addresses: tuple[Address, ...]
    master: str
    login: Login = field(default_factory=Login)


class SentinelFinder:
    """Asks one sentinel after the other which server is the master."""

    is_cluster = False

    def __init__(self, sentinels: RedisSentinels) -> None:
        self._sentinels = sentinels
        self._order = list(sentinels.addresses)

    async def find(self) -> list[Range]:
        """Return the master.

        Raises:
            EngineStartError: no sentinel knows one.
        """
        try:
            return await _first(self._order, self._ask)
        except EngineStartError as error:
            raise type(error)(f"sentinels of master {self._sentinels.master}: {error}") from error

    async def _ask(self, address: Address, seconds: float) -> list[Range]:
        master = self._sentinels.master
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
        answer = await self._sentinels.login.ask(address, *command, seconds=seconds)
        if answer is None:
            raise EngineStartError(f"it knows no master {master}")
        host, port = answer
        return [(0, 0, (host.decode(), int(port)))]


class ClusterFinder:
    """Asks nodes of a cluster which of them has which slots."""

    is_cluster = True

    def __init__(self, nodes: Sequence[Address], login: Login) -> None:
        self._login = login
        self._nodes = list(nodes)

    async def find(self) -> list[Range]:
        """Return the master of each slot.

        Raises:
            EngineStartError: no node can tell, or there are slots without a master.
        """
        try:
            return await _first(self._nodes, self._ask)
        except EngineStartError as error:
            raise type(error)(f"Redis cluster: {error}") from error

    async def _ask(self, address: Address, seconds: float) -> list[Range]:
        answer = await self._login.ask(address, "CLUSTER", "SLOTS", seconds=seconds)
        ranges = [_range(one, address) for one in answer]
        n_slots = sum(last + 1 - first for first, last, _ in ranges)
        if n_slots < N_SLOTS:
            raise EngineStartError(f"read {n_slots} slots that have a master; allowed: {N_SLOTS}")
        self._nodes += {node for _, _, node in ranges} - set(self._nodes)
        return ranges


async def _first(
    order: list[Address], ask: Callable[[Address, float], Awaitable[list[Range]]]
) -> list[Range]:
    """Return the first answer that helps.

    Args:
        order: in which they are asked; the next one is asked first when an answer proves wrong.
        ask: asks one, for so many seconds.

    Raises:
        EngineAwayError: none can be reached.
        EngineStartError: says what each has answered.
    """
    problems: list[tuple[Address, Exception]] = []
    for seconds in _ASK_SECONDS:
        problems.clear()
        for address in list(order):
            order.append(order.pop(0))
            try:
                return await ask(address, seconds)
            except (RedisError, OSError, PenstockError) as error:
                problems.append((address, error))
    kind = EngineAwayError if all(is_away(error) for _, error in problems) else EngineStartError
    raise kind("; ".join(f"{named(address)}: {error}" for address, error in problems))


def _range(told: Sequence[Any], asked: Address) -> Range:
    first, last, master = told[0], told[1], told[2]
    host = (master[0] or b"").decode()
    return first, last, (asked[0] if host in ("", "?") else host, master[1])
