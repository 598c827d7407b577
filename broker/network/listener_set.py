"""The listeners of one program, which may come, change and go while it runs.

Theory of operation. A change is prepared first: the files of TLS are read and addresses that no
listener of the program has are bound. Where anything fails, what was bound is closed, and nothing
has changed. Then the change is made: the listeners that stay take their new keys, those that are
gone stop listening, and the new ones accept clients; clients that have connected meanwhile have
waited in the kernel's queue. A port that the program itself still has is bound last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.broker.config.changes import KeyPath
from penstock.broker.config.listener_config import SOCKET_KEYS, Listener
from penstock.broker.errors import PenstockError
from penstock.broker.network.listeners import Listening
from penstock.broker.network.new_connection import AcceptedConnection, Reception


class Listeners:
    """The listeners of one broker or proxy.

    Attributes:
        addresses: listener name to the (host, port) that it is bound to, or (path, 0) of a Unix
            socket.
        maximum_packet_size: bytes of the largest packet that a client may send.
    """

    def __init__(
        self,
        reception: Reception,
        new_protocol: Callable[[AcceptedConnection], asyncio.Protocol],
        *,
        maximum_packet_size: int,
        shares_ports: bool = False,
    ) -> None:
        """Begin without listeners; arguments are as those of `Listening`."""
        self._shares_ports = shares_ports
        self.addresses: dict[str, tuple[str, int]] = {}
        self.maximum_packet_size = maximum_packet_size
        self._reception = reception
        self._new_protocol = new_protocol
        self._listening: dict[str, Listening] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[Listening]:
        """Yield each listener."""
        return iter(self._listening.values())

    def get(self, name: str) -> Listening | None:
        """Return a listener by its name; None where there is none, such as one that was closed."""
        return self._listening.get(name)

    async def open(self, listeners: Iterable[Listener]) -> None:
        """Open listeners, in their order.

        Raises:
            ListenError: one cannot be used; those before it are open.
        """
        for listener in listeners:
            listening = self._new(listener)
            self._listening[listener.name] = listening
            await listening.bind()
            await self._serve(listening)

    def _new(self, listener: Listener) -> Listening:
        return Listening(
            listener,
            self._reception,
            self._new_protocol,
            maximum_packet_size=self.maximum_packet_size,
            shares_ports=self._shares_ports,
        )

    async def _serve(self, listening: Listening) -> None:
        await listening.serve()
        if self._is_closed:  # meanwhile
            listening.close()
            return
        self.addresses[listening.listener.name] = listening.address

    async def prepare(self, wanted: Mapping[str, Listener]) -> ListenerReload:
        """Read the files of TLS and bind what is new; nothing changes before `take`."""
        found = ListenerReload()
        has = {name: one.listener for name, one in self._listening.items()}
        found.gone = [name for name, one in has.items() if _is_elsewhere(one, wanted.get(name))]
        ports = {has[name].port for name in found.gone} - {0}
        for name, listener in wanted.items():
            if name in has and name not in found.gone:
                kept = {key: getattr(has[name], key) for key in SOCKET_KEYS}
                await found.keep(self._listening[name], replace(listener, **kept))
            else:
                listening = self._new(listener)
                if listener.port in ports and listener.socket_path is None:
                    found.later.append(listening)
                else:
                    await found.bind(listening)
        if self._is_closed:
            found.failed["listeners"] = "all are closed, as the program drains or stops"
        return found

    def take(self, found: ListenerReload) -> Awaitable[None]:
        """Close the listeners that are gone, and give the others their keys, at once.

        Returns:
            What opens the new ones.
        """
        for name in found.gone:
            self._listening.pop(name).close()
            self.addresses.pop(name, None)
        for apply in found.applies:
            apply()
        for listening in self:
            listening.maximum_packet_size = self.maximum_packet_size
        return self._open_prepared(found)

    async def _open_prepared(self, found: ListenerReload) -> None:
        for listening in (*found.bound, *found.later):
            name = listening.listener.name
            try:
                if listening in found.later:
                    await listening.bind()
                self._listening[name] = listening
                await self._serve(listening)
            except PenstockError as error:
                self._listening.pop(name, None)
                found.failed[f"listeners.{name}.bind"] = str(error)

    def close(self) -> None:
        """Stop listening; connections stay. None is opened any more."""
        self._is_closed = True
        for listening in self:
            listening.close()


@dataclass(slots=True)
class ListenerReload:
    """A prepared change of the listeners.

    Attributes:
        read: files of TLS that were read, each behind its key.
        failed: listener, or its key, to why it cannot be used.
        gone: names of listeners that are to stop listening.
        applies: give listeners that stay their keys.
        bound: new listeners that are bound.
        later: new listeners that are bound when those that are gone have stopped.
    """

    read: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    applies: list[Callable[[], None]] = field(default_factory=list)
    bound: list[Listening] = field(default_factory=list)
    later: list[Listening] = field(default_factory=list)

    async def keep(self, listening: Listening, listener: Listener) -> None:
        """Read the files of a listener that stays."""
        path = f"listeners.{listener.name}"
        try:
            apply = await listening.reload(listener)
        except (PenstockError, OSError) as error:  # a file may be deleted while it is read
            self.failed[path] = str(error)
            return
        self.applies.append(apply)
        if listener.tls is not None:
            self.read += [f"{path}.{file}" for file in listener.tls.files()]

    async def bind(self, listening: Listening) -> None:
        """Bind a new listener."""
        self.bound.append(listening)
        try:
            await listening.bind()
        except PenstockError as error:
            self.failed[f"listeners.{listening.listener.name}.bind"] = str(error)

    def live(self) -> dict[KeyPath, bool]:
        """Return the keys of sockets that change live: those of listeners that come or go."""
        new = {listening.listener.name for listening in (*self.bound, *self.later)}
        return {
            ("listeners", name, key): True for name in new.union(self.gone) for key in SOCKET_KEYS
        }

    def abandon(self) -> None:
        """Close what was bound."""
        for listening in self.bound:
            listening.close()


def _is_elsewhere(listener: Listener, wanted: Listener | None) -> bool:
    """Say whether a listener is gone, or has another address."""
    if wanted is None:
        return True
    places = [
        (each.host, each.port, each.socket_path, each.is_loopback) for each in (listener, wanted)
    ]
    return places[0] != places[1]
