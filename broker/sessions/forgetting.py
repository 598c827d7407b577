"""Deduplication identifiers that sinks forget, before a packet identifier may be used again.

Theory of operation. A sink stores the deduplication identifier of a QoS 2 message in one commit
with the message. Where the broker is killed before its PUBREC, the client sends the message again,
and the sink finds the identifier. The answer that lets the client use the packet identifier for
another message (PUBCOMP, a PUBREC that refuses, or the PUBACK of a repeat) waits until all sinks
have forgotten it, and a crash cannot bring it back: the next message is never taken for this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.sessions.client import Client

RETRY_SECONDS: Final = 1.0
"""Time until sinks that could not forget an identifier are asked again."""


class Forgetting:
    """Sinks on their way to forget one deduplication identifier.

    Attributes:
        client: that waits for it.
    """

    __slots__ = ("_has_failed", "_n_waiting", "_packet_id", "_sinks", "_then", "client")

    def __init__(
        self,
        client: Client,
        packet_id: int,
        sinks: Sequence[MessageSink],
        then: Callable[[], None],
    ) -> None:
        """Prepare it; `ask` begins.

        Args:
            client: while its session lasts, the sinks are asked until they succeed.
            packet_id: of the client's message.
            sinks: that may know its deduplication identifier.
            then: called once all of them have forgotten it.
        """
        self.client = client
        self._packet_id = packet_id
        self._sinks = sinks
        self._then = then
        self._n_waiting = 0
        self._has_failed = False

    def ask(self) -> None:
        """Ask all sinks; those that have forgotten it have no work."""
        core = self.client.core
        identifier = self.client.session.deduplication_id(self._packet_id)
        self._has_failed = False
        self._n_waiting = len(self._sinks) + 1
        for sink in self._sinks:
            try:
                sink.forget(identifier, self._answered)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                core.guard.failed(sink.name, error)
                self._answered(False)
        self._answered(True)

    def _answered(self, has_forgotten: bool) -> None:  # noqa: FBT001 (as `MessageSink.forget` has it)
        self._has_failed |= not has_forgotten
        self._n_waiting -= 1
        if self._n_waiting:
            return
        if not self._has_failed:
            self._then()
            return
        core = self.client.core
        core.timers.at(-math.inf, self._wait)
        core.turn.touch(self.client.outgoing)  # it may be outside of a turn

    def _wait(self, now: float) -> None:
        self.client.core.timers.at(now + RETRY_SECONDS, self._ask_again)

    def _ask_again(self, _now: float) -> None:
        session = self.client.session
        if self.client.core.sessions.get(session.client_id) is session:
            self.ask()
