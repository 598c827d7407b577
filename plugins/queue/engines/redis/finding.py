"""Finding the servers that have the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.login import Address, Login, named
from penstock.plugins.queue.engines.redis.routes import N_SLOTS, Range

_ASK_SECONDS: Final = 1.0
"""For the answer of one; another one may be quicker."""


def listed(addresses: Sequence[Address]) -> str:
    """Return addresses as users write them."""
    return ", ".join(map(named, addresses))


class OneServer:
    """There is but one.

    Args:
        address: of it.
    """

    is_cluster = False

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self) -> list[Range]:
        """Return the only server."""
        return [(0, 0, self._address)]


@dataclass(frozen=True, slots=True)
class RedisSentinels:
    """Programs of Redis that watch a master and its replicas.

    Attributes:
        addresses: of the sentinels.
        master: name that the master has there.
        login: to the sentinels.
    """

    addresses: tuple[Address, ...]
    master: str
    login: Login = field(default_factory=Login)


class SentinelFinder:
    """Asks one sentinel after the other which server is the master.

    Args:
        sentinels: where they are.
    """

    is_cluster = False

    def __init__(self, sentinels: RedisSentinels) -> None:
        self._sentinels = sentinels
        self._order = list(sentinels.addresses)

    async def find(self) -> list[Range]:
        """Return the master.

        Raises:
            EngineStartError: no sentinel knows one.
        """
        problems: list[str] = []
        for address in list(self._order):
            try:
                answer = await self._sentinels.login.ask(
                    address,
                    "SENTINEL",
                    "GET-MASTER-ADDR-BY-NAME",
                    self._sentinels.master,
                    seconds=_ASK_SECONDS,
                )
            except (RedisError, OSError, PenstockError) as error:
                problems.append(f"{named(address)}: {error}")
                continue
            finally:
                # The next one is asked first when this one's master cannot be used.
                self._order.append(self._order.pop(0))
            if answer is not None:
                host, port = answer
                return [(0, 0, (host.decode(), int(port)))]
            problems.append(f"{named(address)}: it knows no master {self._sentinels.master}")
        raise EngineStartError(
            f"sentinels of master {self._sentinels.master}: {'; '.join(problems)}"
        )


class ClusterFinder:
    """Asks nodes of a cluster which of them has which slots.

    Args:
        nodes: some of the cluster.
        login: to all nodes.
    """

    is_cluster = True

    def __init__(self, nodes: Sequence[Address], login: Login) -> None:
        self._login = login
        self._nodes = list(nodes)

    async def find(self) -> list[Range]:
        """Return the master of each slot.

        Raises:
            EngineStartError: no node can tell, or there are slots without a master.
        """
        problems: list[str] = []
        for address in list(self._nodes):
            # The next node is asked first when this one's answer does not help.
            self._nodes.append(self._nodes.pop(0))
            try:
                answer = await self._login.ask(address, "CLUSTER", "SLOTS", seconds=_ASK_SECONDS)
            except ResponseError as error:
                problems.append(f"{named(address)}: {error}")
                continue
            except (RedisError, OSError, PenstockError) as error:
                problems.append(f"{named(address)}: {error}")
                continue
            ranges = [_range(one, address) for one in answer]
            n_slots = sum(last + 1 - first for first, last, _ in ranges)
            if n_slots < N_SLOTS:
                problems.append(
                    f"{named(address)}: read {n_slots} slots that have a master; allowed: {N_SLOTS}"
                )
                continue
            for _, _, node in ranges:
                if node not in self._nodes:
                    self._nodes.append(node)
            return ranges
        raise EngineStartError(f"Redis cluster: {'; '.join(problems)}")


def _range(told: Sequence[Any], asked: Address) -> Range:
    first, last, master = told[0], told[1], told[2]
    host = (master[0] or b"").decode()
    return first, last, (asked[0] if host in ("", "?") else host, master[1])
