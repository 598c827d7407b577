"""The context of one broker's core: limits, extensions, timers without a clock, and counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.broker.access_control import AccessControl
from penstock.broker.counters import Counters
from penstock.broker.events import Callbacks
from penstock.broker.extensions import DeliveryGate, LinkSampler, PayloadStore, overridden
from penstock.broker.link import Link
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.payload import STORED_ABOVE_BYTES, Payload
from penstock.broker.plugin_guard import Guard
from penstock.broker.sending import eager_coroutine
from penstock.broker.sending.sender import PendingWrites
from penstock.broker.sending.told import Told
from penstock.broker.timers import Timers

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.config.mqtt_options import MqttOptions

TOLD_SECONDS: Final = 3_600.0
"""From one line about what goes on for a client to the next."""


class Holding(Protocol):
    """A connection that holds packets back."""

    def send_held(self, number: int) -> None:
        """Send what was held for this commit or one before it."""

    def send_held_connack(self) -> None:
        """Send the CONNACK though nothing is safe: the disk refuses."""


class Commits(Protocol):
    """The side of the journal that senders see."""

    is_failing: bool

    @property
    def is_settled(self) -> bool:
        """Whether all that ever changed is safe."""

    def hold_for(self, connection: Holding) -> int:
        """Note that a connection holds a packet back; return the commit it is to wait for."""


class CoreContext:
    """The context that each part of the core may refer to.

    Attributes:
        told: what it has been told of in the last hour.
        spawn: takes a coroutine that has to wait; the driver runs it as a task.
        gate: the delivery gate.
        samplers: write what they learn of each subscriber's path.
        timing: the samplers that take note of what is sent and acknowledged.
        spares: the only one of them is sparing (`LinkSampler.is_sparing`).
        access: access control; None permits every client everything.
        is_plain: no callback looks at single messages or packets.
        timers: all deadlines; the driver runs them.
        turn: of the driver, and what it has caused so far.
        journal: told of what must outlive the process; None where nothing must.
    """

    def __init__(
        self,
        limits: Limits,
        options: MqttOptions,
        *,
        logger: logging.Logger,
        wake: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        gate: DeliveryGate | None,
        samplers: Sequence[LinkSampler],
        payload_store: PayloadStore | None,
        access: AccessControl | None,
        callbacks: Callbacks | None,
    ) -> None:
        """Begin without clients; arguments are as those of `Core`."""
        self.limits = limits
        self.options = options
        self.logger = logger
        self.told = Told(TOLD_SECONDS)
        self.spawn = spawn
        self.gate = DeliveryGate() if gate is None else gate
        self.samplers = tuple(samplers)
        self.timing = tuple(sampler for sampler in samplers if times_packets(sampler))
        self.spares = len(self.timing) == 1 and self.timing[0].is_sparing
        store = self.payload_store = PayloadStore() if payload_store is None else payload_store
        self.copies_payloads = overridden(store.copy, PayloadStore.copy) is not None
        keeps = overridden(store.keep, PayloadStore.keep)
        self.is_by_reference = keeps is None and not self.copies_payloads
        self.access = access
        self.callbacks = callbacks or Callbacks()
        self.is_plain = self._is_plain()
        self.timers = Timers()
        self.counters = Counters()
        self.guard = Guard(logger, self.counters.extension_errors)
        self.turn = PendingWrites(wake)
        self.outbox_rules = OutboxLimits(
            self.gate,
            self.guard,
            max_messages=limits.queued_messages,
            max_bytes=limits.queued_bytes,
            drops_oldest=limits.queue_full == "drop_oldest",
            backlog=Backlog.of(limits.total_queued_messages, limits.total_queued_bytes),
            logger=logger,
        )
        self.journal: Commits | None = None

    def tell(self, callbacks: Callbacks) -> None:
        """Tell these callbacks of events from now on, and no others."""
        self.callbacks = callbacks
        self.is_plain = self._is_plain()

    def _is_plain(self) -> bool:
        told = self.callbacks
        return not (
            told.packet_received or told.packet_sent or told.message_received or told.message_routed
        )

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine now; what is left of one that has to wait becomes a task."""
        rest = eager_coroutine.start(coroutine)
        if rest is not None:
            self.spawn(rest)

    def threshold_s(self, topic: str) -> int | None:
        """Ask the gate above how many payload bytes a topic's messages are large; None: none is."""
        return self.guard.call(self.gate, self.gate.threshold_s, topic, otherwise=None)

    def connected(self, link: Link, now: float) -> None:
        """Tell the samplers of a subscriber's new connection: estimates of its last one are void.

        Do it before the gate's next decision.
        """
        self.guard.tell_each(self.samplers, lambda sampler: sampler.connected(link, now))

    def forget(self, link: Link) -> None:
        """Let gate and samplers drop what they keep for a session that has ended."""
        self.guard.call(self.gate, self.gate.forget, link, otherwise=None)
        self.guard.tell_each(self.samplers, lambda sampler: sampler.forget(link))

    def keep(self, data: bytes) -> Payload:
        """Return what stands for a payload, from the store if it is one for that.

        Raises:
            OSError: the store cannot keep it.
        """
        return data if len(data) <= STORED_ABOVE_BYTES else self.payload_store.keep(data)


def times_packets(sampler: LinkSampler) -> bool:
    """Say whether a sampler takes note of anything that is sent or acknowledged."""
    told = (
        overridden(sampler.sent, LinkSampler.sent),
        overridden(sampler.sent_run, LinkSampler.sent_run),
        overridden(sampler.acknowledged, LinkSampler.acknowledged),
        overridden(sampler.acknowledged_run, LinkSampler.acknowledged_run),
        overridden(sampler.probe_sent, LinkSampler.probe_sent),
    )
    return any(told)
