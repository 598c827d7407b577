"""The rules of all outboxes of one broker: limits, gate and order."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import DeliveryGate, overridden
from penstock.broker.link import Link
from penstock.broker.message import DEFAULT_THRESHOLD_S, Message, SizeClass
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.large_messages import Path, Until, WithholdingRecord
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.plugin_guard import Guard

if TYPE_CHECKING:
    from penstock.broker.client_report import PassageFigures
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.outbox.outbox import Outbox

SWEEP_SECONDS: Final = 0.00002
"""For each waiting message, the time without a further search for expired ones, which takes 0.4 %
of it. A search whenever one has expired, ten times a second in 12 full outboxes of 100,000, would
take all the time."""


@dataclass(eq=False, slots=True)
class OutboxLimits:
    """The rules that the outboxes of one broker, or one proxy, have in common.

    Attributes:
        max_messages: limit of messages that wait in one outbox.
        max_bytes: the same in payload bytes.
        drops_oldest: at a limit, the message that has waited longest is dropped, not the new one.
        gate: asked about large messages.
        guard: for calls of the gate; where it raises, the message is delivered.
        backlog: counts what waits in all of them; None where that has no limit.
        logger: gets debug lines about large messages.
        half_messages: half of `max_messages`.
        half_bytes: half of `max_bytes`.
        is_of_one: they are those of one session: its publishers are not refused, nor do they wait,
            and small messages pass large ones whether the gate has a threshold or not.
        refuses: beside `is_of_one`: its publishers are refused, or wait, also while it is away.
        over_half: outboxes, and the backlog, that are more than half full.
        keeps_topics: a small message waits behind a withheld large one of its topic.
        supersedes: a large message of QoS 0 replaces the one before on its topic.
        on_dropped: called for messages dropped for want of room, with link, reason, number and
            approximate time.
        default_threshold_s: payload bytes above which a message is large for subscriptions of one
            size class where no gate has a threshold; None where the gate decides.
        is_first: the gate's; None where it has none.
        is_large: the same.
        observe: the same.
        large_sent: the same.
        large_acknowledged: the same.
        record: counts what becomes of large messages.
    """

    gate: DeliveryGate
    guard: Guard
    _: KW_ONLY
    max_messages: int = sys.maxsize
    max_bytes: int = sys.maxsize
    drops_oldest: bool = False
    backlog: Backlog | None = None
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("penstock"))
    half_messages: int = field(init=False)
    half_bytes: int = field(init=False)
    is_of_one: bool = field(default=False, init=False)
    refuses: bool = field(default=False, init=False)
    over_half: set[object] = field(default_factory=set, init=False)
    keeps_topics: bool = field(init=False)
    supersedes: bool = field(init=False)
    on_dropped: Callable[[Link, str, int, float], None] | None = field(default=None, init=False)
    default_threshold_s: int | None = field(init=False)
    is_first: Callable[..., bool] | None = field(init=False)
    is_large: Callable[..., bool] | None = field(init=False)
    observe: Callable[..., None] | None = field(init=False)
    large_sent: Callable[..., None] | None = field(init=False)
    large_acknowledged: Callable[..., bool] | None = field(init=False)
    record: WithholdingRecord = field(init=False)
    _common: OutboxLimits | None = field(default=None, init=False)
    _own: tuple[int | None, int | None] = field(default=(None, None), init=False)

    def __post_init__(self) -> None:
        """Find out once what each message asks for."""
        gate, guard = self.gate, self.guard
        self.change(self.max_messages, self.max_bytes, drops_oldest=self.drops_oldest)
        if self.backlog is not None:
            self.backlog.over_half = self.over_half
        self.keeps_topics = gate.keeps_topics
        self.supersedes = gate.supersedes
        has_threshold = overridden(gate.threshold_s, DeliveryGate.threshold_s) is not None
        self.default_threshold_s = None if has_threshold else DEFAULT_THRESHOLD_S
        self.is_first = guard.over(gate, overridden(gate.is_first, DeliveryGate.is_first), False)
        self.is_large = guard.over(gate, overridden(gate.is_large, DeliveryGate.is_large), True)
        self.record = WithholdingRecord("", self.logger)
        self.gate_changed()
        self.observe = guard.over(gate, overridden(gate.observe, DeliveryGate.observe), None)
        sent = overridden(gate.large_sent, DeliveryGate.large_sent)
        self.large_sent = guard.over(gate, sent, None)
        acknowledged = overridden(gate.large_acknowledged, DeliveryGate.large_acknowledged)
        self.large_acknowledged = guard.over(gate, acknowledged, False)

    def change(self, max_messages: int, max_bytes: int, *, drops_oldest: bool) -> None:
        """Have other limits from now on; `over_half` is left to the caller."""
        self.max_messages, self.half_messages = max_messages, max_messages // 2
        self.max_bytes, self.half_bytes = max_bytes, max_bytes // 2
        self.drops_oldest = drops_oldest

    def gate_changed(self) -> None:
        """Count decisions under the name of the gate's policy from now on."""
        self.record.policy = self.gate.policy_name or type(self.gate).__name__

    def of_one(
        self,
        *,
        max_messages: int | None,
        max_bytes: int | None,
        drops_oldest: bool,
        refuses: bool = False,
    ) -> OutboxLimits:
        """Return the rules of one outbox that has limits of its own; all else is shared.

        They are as the attributes. None stands for the limit of all, as it is when `follow` is
        called.
        """
        rules = copy(self)
        rules.is_of_one = True
        rules.drops_oldest = drops_oldest
        rules._common, rules._own = self, (max_messages, max_bytes)  # noqa: SLF001 (of this class)
        rules.follow()
        rules.refuses = refuses
        if refuses:  # each message is to be looked at: its limits may be narrow
            rules.over_half.add(None)
        return rules

    def follow(self) -> None:
        """Take those limits of all that are not the outbox's own, after they have changed."""
        common, (max_messages, max_bytes) = self._common, self._own
        if common is not None:
            self.change(
                common.max_messages if max_messages is None else max_messages,
                common.max_bytes if max_bytes is None else max_bytes,
                drops_oldest=self.drops_oldest,
            )

    def is_large_for(self, message: Message, link: Link) -> bool:
        """Say whether a message is large for one subscriber, as far as the gate has a say."""
        if self.is_of_one and self.default_threshold_s is not None:
            return message.payload_bytes > self.default_threshold_s
        is_large = self.is_large
        if not message.is_large or is_large is None:
            return message.is_large
        return is_large(message, link)

    def is_of(self, size_class: SizeClass, message: Message, link: Link) -> bool:
        """Say whether a message belongs to a size class for one subscriber.

        This is the rule for every subscription of one size class. The gate decides as it does for
        withholding; where it has no threshold, `DEFAULT_THRESHOLD_S` counts.
        """
        if self.default_threshold_s is not None:
            is_large = message.payload_bytes > self.default_threshold_s
        else:
            is_large = self.is_large_for(message, link)
        return is_large == (size_class == "large")

    def is_over_half(self, outbox: Outbox) -> bool:
        """Say whether an outbox is more than half full."""
        return outbox.n_messages > self.half_messages or outbox.n_bytes > self.half_bytes

    def has_plenty(self, outbox: Outbox) -> bool:
        """Say whether an outbox, and the backlog, are less than a quarter full."""
        backlog = self.backlog
        return (
            2 * outbox.n_messages < self.half_messages
            and 2 * outbox.n_bytes < self.half_bytes
            and (backlog is None or backlog.has_plenty)
        )

    def left(self, outbox: Outbox) -> None:
        """Check whether an outbox that messages have left is still more than half full."""
        if not self.is_over_half(outbox):
            self.over_half.discard(outbox)

    def passage(self, link: Link, now: float) -> PassageFigures | None:
        """Return what the gate knows of a subscriber's large messages, for reports."""
        return self.guard.call(self.gate, self.gate.passage, link, now, otherwise=None)

    def note_leaving(self, link: Link, large: Delivery, now: float) -> None:
        """Note when a large message of QoS 0 leaves, as nothing acknowledges it."""
        if not large.qos:
            self.observe_latency(link, "large", "sent", now - large.message.arrived_at)

    def observe_latency(
        self, link: Link, size_class: SizeClass, until: Until, seconds: float
    ) -> None:
        """Take the latency of one message; see `WithholdingRecord.observe_latency`."""
        rtt = link.rtt_latest
        threshold_l = None
        if rtt is not None:
            gate = self.gate
            threshold_l = self.guard.call(gate, gate.threshold_l, link, otherwise=None)
        is_congested = rtt is not None and threshold_l is not None and rtt > threshold_l
        path: Path = "congested" if is_congested else "calm"
        self.record.observe_latency(size_class, until, path, seconds)

    def drop(
        self, link: Link, ledger: Ledger, reason: str, now: float, n_messages: int = 1
    ) -> None:
        """Count messages that are dropped for want of room, or have waited too long."""
        ledger.drop(reason, n_messages)
        if self.on_dropped is not None:
            self.on_dropped(link, reason, n_messages, now)
