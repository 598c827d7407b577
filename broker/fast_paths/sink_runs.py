"""Sinks that take runs: they stand behind the sessions that get the same messages.

Theory of operation. A `FastPlan` has a tuple of sessions, over which the fast paths go. The sinks
of its plan are one more in it, the last, to which nothing can be copied at once. So it is met where
sessions are that have to wait, and messages without sinks pay nothing for it.

A run of QoS 1 or 2 is reserved in all sinks before anybody gets it, and its acknowledgements wait
for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import SinkRun
from penstock.broker.mqtt.enums import MQTT_5

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.extensions import MessageSink, Receipt
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.fast_paths.fast_core import FastCore, FastSession

_REFUSED: Final = 0x80
"""The reason code of messages whose sink has raised: unspecified error."""


class RunSinks:
    """The sinks of a plan, in the place of a session.

    Attributes:
        sinks: in their order; all take runs.
        is_direct: False: nothing is copied to them at once.
        sender: None, as that of a session that is away.
        journal: None: nothing of them is in the broker's database.
    """

    __slots__ = ("_core", "sinks")

    is_direct: Final = False
    sender: Final = None
    journal: Final = None

    def __init__(self, core: FastCore, sinks: tuple[MessageSink, ...]) -> None:
        self._core = core
        self.sinks = sinks

    @property
    def inflight(self) -> RunSinks:
        """The window of a session, of which the journal alone is asked for."""
        return self

    def reserve(self, n_messages: int, n_bytes: int) -> bool:
        """Hold room for a run in all of the sinks, or in none; return whether it is held."""
        call = self._core.guard.call
        for place, sink in enumerate(self.sinks):
            if not call(sink.name, sink.reserve_run, n_messages, n_bytes, otherwise=False):
                for other in self.sinks[:place]:
                    call(other.name, other.release_run, n_messages, n_bytes, otherwise=None)
                return False
        return True

    def accept(
        self,
        client: FastClient,
        packets: bytes,
        n_messages: int,
        qos: int = 0,
        receipt: Receipt | None = None,
    ) -> None:
        """Give a run to each of the sinks; see `SinkRun`.

        Args:
            client: the publisher's.
            packets: whole packets.
            n_messages: how many.
            qos: of all; with 1 or 2, `reserve` has held room.
            receipt: waits for one answer of each sink; None for QoS 0.
        """
        version = MQTT_5 if client.version == MQTT_5 else 4
        run = SinkRun(packets, n_messages, version, qos, client.session.known_as)
        for sink in self.sinks:
            try:
                sink.accept_run(run, receipt)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                self._core.guard.failed(sink.name, error)
                if receipt is not None:
                    receipt.settle(_REFUSED)


def sinks_of(sessions: Sequence[FastSession]) -> RunSinks | None:
    """Return the sinks among the sessions of a `FastPlan`, or None."""
    last = sessions[-1] if sessions else None
    return last if isinstance(last, RunSinks) else None
