"""Moving slots from one master to another while programs go on.

Theory of operation. A slot is frozen at its old master (``SETSLOT MIGRATING``) before anything is
copied. The library's functions name the beginning of a physical queue's keys, under which no key
stands, so the old master answers `ASK` from then on and carries nothing out, and the engine waits
(`pipeline`). Then the keys are copied, not moved; the new master's replicas get them; the new
master takes the slot, with a greater epoch; the old one drops its keys. Until the new master has
taken the slot, all keys are still at the old one: what fails before is undone there, what fails
later is finished, and nothing is lost when either dies at any moment.

Most slots have no keys: they move many at a time. What was taken counts for the others, as its
epoch is the greatest (``CLUSTER BUMPEPOCH``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from penstock.broker.config.key_types import show_size
from penstock.plugins.queue.cluster.members import read_members
from penstock.plugins.queue.cluster.servers import FabricError, Servers, until
from penstock.plugins.queue.engines.redis.login import Address, Login, named, read_password

AT_A_TIME: Final = 500
"""Slots without keys: calls to one of them wait for some tens of milliseconds."""
COPY_SECONDS: Final = 60.0
MOST_KEY_BYTES: Final = 256 * 1024 * 1024
"""A server answers nobody while it copies a key. More than this may take as long as the time after
which the others take it for dead."""


class Master(NamedTuple):
    """A server that has slots, or is to get some.

    Attributes:
        address: of it.
        id: in the cluster.
        n_replicas: that must have what it gets.
    """

    address: Address
    id: str
    n_replicas: int


class SlotMove(NamedTuple):
    """Slots that go from one master to another.

    Attributes:
        slots: that move.
        giver: that has them.
        taker: that gets them.
    """

    slots: tuple[int, ...]
    giver: Master
    taker: Master


def share_out(
    owned: Mapping[str, Sequence[int]], wanted: Iterable[str]
) -> dict[tuple[str, str], list[int]]:
    """Return which slots go from whom to whom, so that all that are wanted have as many.

    As few move as possible. The numbers that two have at last differ by one at most.

    Args:
        owned: slots of each master by its name.
        wanted: masters that are to have slots, each of which is in `owned`.
    """
    n_slots = sum(map(len, owned.values()))
    takers = sorted(wanted, key=lambda name: -len(owned[name]))
    share, n_larger = divmod(n_slots, len(takers))
    quotas = {name: share + (at < n_larger) for at, name in enumerate(takers)}
    surplus = [
        (name, slot) for name, slots in owned.items() for slot in list(slots)[quotas.get(name, 0) :]
    ]
    moves: dict[tuple[str, str], list[int]] = {}
    for name in takers:
        for _ in range(quotas[name] - len(owned[name])):
            giver, slot = surplus.pop()
            moves.setdefault((giver, name), []).append(slot)
    return moves


class SlotMover:
    """Moves slots.

    Args:
        servers: connections.
        login: to servers, which log in at each other in the same way.
        tell: gets a line for each slot with keys.
    """

    def __init__(self, servers: Servers, login: Login, tell: Callable[[str], None]) -> None:
        self._servers = servers
        self._login = login
        self._tell = tell

    async def check(self, moves: Sequence[SlotMove]) -> None:
        """See that no key is too large, before anything moves.

        Raises:
            FabricError: one is, or a server does not answer.
        """
        for move in moves:
            for slot in await self.with_keys(move.giver.address, move.slots):
                for key in await self._keys(move.giver.address, slot):
                    ask = ("MEMORY", "USAGE", key)
                    n_bytes = await self._servers.ask(move.giver.address, *ask) or 0
                    if n_bytes > MOST_KEY_BYTES:
                        raise FabricError(
                            f"key {key.decode(errors='replace')} of server "
                            f"{named(move.giver.address)}: read {show_size(n_bytes)}; allowed: "
                            f"{show_size(MOST_KEY_BYTES)}, as its server answers nobody while it "
                            "is copied. Receive messages of this physical queue first"
                        )

    async def move(self, move: SlotMove) -> None:
        """Move slots; those that have not moved when this fails or is cancelled stay as they were.

        Raises:
            FabricError: a server does not answer, or refuses.
        """
        for at in range(0, len(move.slots), AT_A_TIME):
            some = move.slots[at : at + AT_A_TIME]
            full = set(await self._with_any(move, some))
            empty = [slot for slot in some if slot not in full]
            full |= set(await self._move_frozen(move, empty, has_keys=False))
            for slot in sorted(full):
                await self._move_frozen(move, [slot], has_keys=True)

    async def _with_any(self, move: SlotMove, slots: Sequence[int]) -> list[int]:
        """Return slots with keys, or with copies that an attempt which was broken off has left."""
        kept = await self.with_keys(move.giver.address, slots)
        return [*kept, *await self.with_keys(move.taker.address, slots)]

    async def _move_frozen(
        self, move: SlotMove, slots: Sequence[int], *, has_keys: bool
    ) -> list[int]:
        """Freeze slots and move them; return those that were to have no keys and have some."""
        giver, taker = move.giver, move.taker
        left: list[int] = []
        frozen = list(slots)
        try:
            await self._servers.ask(taker.address, "CLUSTER", "BUMPEPOCH")
            # Taking a slot that it imports, a server tells everybody: once for all is enough.
            await self._set(taker.address, frozen[-1:], "IMPORTING", giver.id)
            await self._set(giver.address, frozen, "MIGRATING", taker.id)
            if has_keys:
                for slot in frozen:
                    await self._copy(move, slot)
            else:
                left = await self._with_any(move, frozen)
                await self._undo(move, left)
                frozen = [slot for slot in frozen if slot not in left]
            await self._set(taker.address, frozen, "NODE", taker.id)
        except BaseException:
            await self._settle(move, frozen)
            raise
        await self._finish(move, frozen)
        return left

    async def _finish(self, move: SlotMove, slots: Sequence[int]) -> None:
        """Have the giver give up slots that the taker has."""
        for slot in await self.with_keys(move.giver.address, slots):
            await self._drop(move.giver.address, slot)
        try:
            await self._set(move.giver.address, slots, "NODE", move.taker.id)
        except FabricError as error:
            # Others may have told it before, and a master without slots may become a replica.
            if "only with masters" not in str(error.__cause__):
                raise

    async def _undo(self, move: SlotMove, slots: Sequence[int]) -> None:
        """Let the giver serve slots again, which has all their keys."""
        for address in (move.taker.address, move.giver.address):
            await self._set(address, slots, "STABLE")

    async def _settle(self, move: SlotMove, slots: Sequence[int]) -> None:
        """Finish what the taker has taken, and undo the rest.

        Where the taker does not tell, slots stay frozen: who of both has them is not known.
        """
        with suppress(FabricError):
            told = (await self._servers.ask(move.taker.address, "CLUSTER", "NODES")).decode()
            (taker,) = [one for one in read_members(told) if one.id == move.taker.id]
            taken = {slot for first, last in taker.slots for slot in range(first, last + 1)}
            await self._finish(move, [slot for slot in slots if slot in taken])
            await self._undo(move, [slot for slot in slots if slot not in taken])

    async def _set(self, address: Address, slots: Sequence[int], *state: str) -> None:
        await self._servers.ask_all(
            address, [("CLUSTER", "SETSLOT", slot, *state) for slot in slots]
        )

    async def with_keys(self, address: Address, slots: Sequence[int]) -> list[int]:
        """Return those of some slots under which a server has keys.

        Raises:
            FabricError: it does not answer.
        """
        counts = await self._servers.ask_all(
            address, [("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in slots]
        )
        return [slot for slot, n_keys in zip(slots, counts, strict=True) if n_keys]

    async def _keys(self, address: Address, slot: int) -> list[bytes]:
        n_keys = await self._servers.ask(address, "CLUSTER", "COUNTKEYSINSLOT", slot)
        keys: list[bytes] = await self._servers.ask(
            address, "CLUSTER", "GETKEYSINSLOT", slot, n_keys
        )
        return keys

    async def _copy(self, move: SlotMove, slot: int) -> None:
        """Copy the keys of a slot, and wait until the replicas of the taker have them."""
        giver, taker = move.giver, move.taker
        await self._drop_copies(taker.address, slot)
        keys = await self._keys(giver.address, slot)
        host, port = taker.address
        milliseconds = round(1000 * COPY_SECONDS)
        for key in keys:
            copy = ("MIGRATE", host, port, key, 0, milliseconds, "COPY", "REPLACE", *self._auth())
            await self._servers.ask(giver.address, *copy, seconds=2 * COPY_SECONDS)
        await self._until_replicated(taker)
        way = f"from {named(giver.address)} to {named(taker.address)}"
        self._tell(f"slot {slot}: {len(keys)} keys {way}")

    def _auth(self) -> tuple[str, ...]:
        if self._login.password_file is None:
            return ()
        return ("AUTH", read_password(self._login.password_file))

    async def _until_replicated(self, taker: Master) -> None:
        end = int((await self._servers.info(taker.address, "replication"))["master_repl_offset"])

        async def have_it() -> bool:
            info = await self._servers.info(taker.address, "replication")
            replicas = [
                dict(pair.split("=", 1) for pair in value.split(","))
                for name, value in info.items()
                if name.startswith("slave") and name[5:].isdigit()
            ]
            n = sum(int(one["offset"]) >= end for one in replicas if one["state"] == "online")
            return n >= taker.n_replicas

        await until(have_it, f"replicas of {named(taker.address)} have what it got", COPY_SECONDS)

    async def _drop_copies(self, address: Address, slot: int) -> None:
        """Drop what an attempt that was broken off has left at a server that imports a slot."""
        for key in await self._keys(address, slot):
            await self._servers.ask_all(address, [("ASKING",), ("UNLINK", key)])

    async def _drop(self, address: Address, slot: int) -> None:
        """Drop the keys of a slot that another has; the server may have done so by itself."""
        for key in await self._keys(address, slot):
            try:
                await self._servers.ask(address, "UNLINK", key)
            except FabricError as error:
                if not isinstance(error.__cause__, ResponseError):
                    raise
                return
