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
    from penstock.broker.sending.sender import Sender

RETRY_SECONDS: Final = 1.0
"""Time until sinks that could not forget an identifier are asked again."""


class DeduplicationRelease:
    """Sinks on their way to forget one deduplication identifier.

    Attributes:
        sender: of the client that waits for it.
    """

    __slots__ = (
        "_has_failed",
        "_identifier",
        "_is_wanted",
        "_n_waiting",
        "_sinks",
        "_then",
        "sender",
    )

    def __init__(
        self,
        sender: Sender,
        identifier: bytes,
        sinks: Sequence[MessageSink],
        then: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Prepare it; `ask` begins, and `then` is called once all sinks have forgotten.

        `is_wanted` says whether to ask again where one could not: the session is there.
        """
        self.sender = sender
        self._identifier = identifier
        self._sinks = sinks
        self._then = then
        self._is_wanted = is_wanted
        self._n_waiting = 0
        self._has_failed = False

    def ask(self) -> None:
        """Ask all sinks; those that have forgotten it have no work."""
        guard = self.sender.core.guard
        self._has_failed = False
        self._n_waiting = len(self._sinks) + 1
        for sink in self._sinks:
            try:
                sink.forget(self._identifier, self._answered)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                guard.failed(sink.name, error)
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
        core = self.sender.core
        core.timers.at(-math.inf, self._wait)
        core.turn.touch(self.sender.outgoing)  # it may be outside of a turn

    def _wait(self, now: float) -> None:
        self.sender.core.timers.at(now + RETRY_SECONDS, self._ask_again)

    def _ask_again(self, _now: float) -> None:
        if self._is_wanted():
            self.ask()
