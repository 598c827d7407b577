"""The points at which plugins meet the broker.

Four extension points decide, in the present tense, as plain functions on the loop's thread:

* `DeliveryGate`: may this message go to this subscriber now, or look again when?
* `LinkSampler`: what does a subscriber's path look like?
* `PayloadStore`: where does a payload live?
* `MessageSink`: a route target that is not a session.

A plugin may also look: `ClientReports` says how each client's link and messages are.

Who may connect, and do what with which topic, is decided by `penstock.broker.access_control`. A
`Plugin` brings any of these; the policy file names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from penstock.broker.access_control import AccessControl, Authenticator
from penstock.broker.client_report import ClientReport
from penstock.broker.events import Callbacks
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.payload import Payload


class Verdict(NamedTuple):
    """A gate's answer.

    Attributes:
        deliver: True to send the message now.
        look_again_at: monotonic seconds at which to ask again at the latest; None for
            "when the link changes". Ignored when `deliver` is True.
        reason: a few words for logs and reports, such as ``L_now 0.8 s >= 0.25 s``.
    """

    deliver: bool
    look_again_at: float | None = None
    reason: str = ""


class Decision(NamedTuple):
    """A gate's answer about one message, as reports tell of it later.

    Attributes:
        verdict: the answer.
        topic: Topic Name of the message.
        payload_bytes: of the message.
        sojourn: seconds for which it had been withheld then (ΔS of paper 002).
        at: monotonic seconds of the answer.
    """

    verdict: Verdict
    topic: str
    payload_bytes: int
    sojourn: float
    at: float


class DeliveryGate(Protocol):
    """Says when a large message may go to one subscriber."""

    def threshold_s(self, topic: str) -> int | None:
        """Return the payload size in bytes above which messages of `topic` are large.

        Asked once for each topic and cached. None: no message of this topic is large. Where it
        depends on the subscriber, see `SubscriberGate`.
        """

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Say whether `message`, withheld for `sojourn` seconds so far, may go now.

        Asked when a large message reaches the head of an outbox that has room, whenever the
        link has changed, and when the last verdict's `look_again_at` has come. A gate that
        raises is logged and counted, and the message is delivered.
        """

    def forget(self, link: Link) -> None:
        """Drop whatever is kept for this subscriber: its session has ended."""


class LearningGate:
    """Base of a `DeliveryGate` that is told of RTT estimates when nothing waits, too."""

    def observe(self, link: Link) -> None:
        """The link may have a new RTT estimate; one that has been seen is told again at times.

        A gate that raises is logged and counted.
        """
        raise NotImplementedError


class OrderingGate:
    """Base of a `DeliveryGate` that says what may pass what on its way to one subscriber.

    Attributes:
        keeps_topics: a small message waits behind a withheld large one of its topic, as
            [MQTT-4.6.0-6] has it; False: it passes.
        supersedes: a large message of QoS 0 that waits gives way to the next one of its topic.
        has_first: whether `is_first` is to be asked.
    """

    keeps_topics: bool = True
    supersedes: bool = False
    has_first: bool = False

    def is_first(self, topic: str) -> bool:
        """Say whether messages of a topic leave before all others; always the same of one topic."""
        raise NotImplementedError


class ThresholdGate:
    """Base of a `DeliveryGate` that holds a link's RTT against a threshold, and says which."""

    def threshold_l(self, link: Link) -> float:
        """Return the RTT in seconds above which it takes this path for congested now."""
        raise NotImplementedError


class SubscriberGate:
    """Base of a `DeliveryGate` that goes by what a CONNECT says, and where it came to.

    A gate that raises is logged and counted.
    """

    def connected(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> str:
        """A subscriber has connected; its link has its names and its listener.

        Args:
            link: of the subscriber.
            user_properties: of its CONNECT, in their order; none before MQTT 5.0.

        Returns:
            What of them is ignored and why, to be logged and counted; "" for nothing.
        """
        raise NotImplementedError

    def is_large(self, message: Message, link: Link) -> bool:
        """Say whether a message above `threshold_s` of its topic is large for this subscriber.

        `threshold_s` is then the least of all subscribers': what is not above it is small for
        everybody, and nobody is asked.
        """
        raise NotImplementedError


class Transfer(NamedTuple):
    """A large message of which a part has left the broker and a part has not.

    Attributes:
        message: of QoS 1 or 2.
        sent_bytes: payload bytes that the kernel has taken.
        left_bytes: payload bytes that it has not.
        bytes_per_second: at which they left lately, for `BreakingGate.break_off_after` at most.
        seconds: for which it has been leaving.
        repeated_bytes: payload bytes of other messages that are unacknowledged: a new connection
            begins with them [MQTT-4.4.0-1].
        sojourn: seconds since it was first withheld; 0.0 where it never was.
    """

    message: Message
    sent_bytes: int
    left_bytes: int
    bytes_per_second: float
    seconds: float
    repeated_bytes: int
    sojourn: float


class BreakingGate:
    """Base of a `DeliveryGate` that may break off the sending of a large message.

    Nothing can overtake a PUBLISH that has begun. Where it is broken off, the connection ends, the
    message counts as not sent, and the gate is asked about it anew once the client is back.

    Attributes:
        break_off_after: seconds that a large message is left alone at least; None where
            `breaks_off` is not to be asked.
    """

    break_off_after: float | None = None

    def breaks_off(self, transfer: Transfer, link: Link, now: float) -> str:
        """Say why the sending of a message is broken off; "" where it is not.

        Asked about once a second while others wait behind it, if nothing is lost by it: the last
        question before it is done. A gate that raises is logged and counted, and the sending goes
        on.
        """
        raise NotImplementedError


class LinkSampler(Protocol):
    """Writes what it learns of a subscriber's path into its `Link`.

    Each method returns True when the link has a new RTT estimate, after which the gate is
    asked again for what that subscriber has withheld.

    Attributes:
        period: seconds between two calls of `sample` for each connected subscriber (T_Q of
            paper 002); None where the sampler needs none.
    """

    period: float | None

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Look at the connection's socket, given by its file descriptor (-1 for none)."""

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """A QoS 1 or 2 PUBLISH was handed to the connection for the first time."""

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Its PUBACK or PUBREC has come."""

    def connected(self, link: Link, now: float) -> None:
        """The subscriber has a new network connection: what was outstanding is void."""

    def forget(self, link: Link) -> None:
        """Drop whatever is kept for this subscriber: its session has ended."""


class RunSampler:
    """Base of a `LinkSampler` that takes packets which go, or are acknowledged, together at once.

    Others are called for each of them, one after the other, with the same `now`.
    """

    def sent_run(
        self, link: Link, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> None:
        """As `LinkSampler.sent` for Packet Identifiers that follow each other.

        Args:
            link: of the subscriber.
            first_packet_id: of the oldest.
            n_packets: how many.
            payload_bytes: of each.
            now: monotonic seconds.
        """
        raise NotImplementedError

    def acknowledged_run(
        self, link: Link, first_packet_id: int, n_packets: int, now: float
    ) -> bool:
        """As `LinkSampler.acknowledged` for Packet Identifiers that follow each other."""
        raise NotImplementedError


class SparingSampler:
    """Base of a `LinkSampler` that says in the link what it would do nothing about.

    A broker whose only sampler it is does not call `sent` before `Link.quiet_until`, nor
    `acknowledged` while `Link.outstanding_since` is None. Others are told of everything.
    """


class ProbingSampler:
    """Base of a `LinkSampler` that has messages of its own sent to subscribers, to time them.

    In each of its periods, every connected client that has subscribed to `probe_topic` by that very
    name, at QoS 1 or 2, is sent a QoS 1 message with `probe_payload`, for itself alone; but none
    while an earlier one is unacknowledged. `LinkSampler.acknowledged` tells of the PUBACK.

    Attributes:
        probe_topic: Topic Name, valid; None where no probes are sent.
        probe_payload: of each probe.
    """

    probe_topic: str | None = None
    probe_payload: bytes = b""

    def probe_sent(self, link: Link, packet_id: int, now: float) -> None:
        """A probe was handed to the connection; `LinkSampler.sent` is not called for it."""
        raise NotImplementedError


class PayloadStore(Protocol):
    """Keeps payloads that wait for at least one target, of more than `STORED_ABOVE_BYTES`.

    Others stay with their messages.
    """

    def keep(self, data: bytes) -> Payload:
        """Return what stands for `data` until its last reference is gone.

        Raises:
            OSError: it cannot be kept; the publish is refused.
        """


class CopyingStore:
    """Base of a `PayloadStore` that keeps a payload for each subscriber."""

    def copy(self, payload: Payload) -> Payload:
        """Return what stands for a payload of the store, for one subscriber more."""
        raise NotImplementedError


class CountingStore:
    """Base of a `PayloadStore` that has figures to show."""

    def figures(self) -> Mapping[str, int]:
        """Return them by their names below ``$SYS/broker/penstock/payload_store/``."""
        raise NotImplementedError


class Receipt(Protocol):
    """A sink's promise to the publisher of one QoS 1 or 2 message."""

    def settle(self, reason_code: int) -> None:
        """Report the outcome, once, on the loop's thread.

        Args:
            reason_code: 0 when the message is safe; 0x80 or above when it is refused.
        """


class SinkCounts(Protocol):
    """A sink's side of the ledger: matched = stored + queued + sum(dropped).

    Attributes:
        matched: messages the router offered.
        stored: messages that are safe in the sink.
        queued: messages taken and not yet safe.
        dropped: refused or lost messages by reason.
    """

    matched: int
    stored: int
    queued: int
    dropped: dict[str, int]


class MessageSink(Protocol):
    """A route target that is not a session, such as a pull queue.

    Attributes:
        name: unique among the broker's sinks.
        topic_filters: MQTT topic filters; a message that matches several is offered once.
        counts: its side of the ledger.
    """

    name: str
    topic_filters: Sequence[str]
    counts: SinkCounts

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message without waiting.

        Args:
            message: of QoS 0 when `receipt` is None.
            receipt: settled by the sink once the message is safe or refused.
        """


class ClientReports(Protocol):
    """What can be asked about the broker's clients, on the loop's thread.

    There may be very many: who asks about all of them lets others have their turn in between.
    """

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session, in no promised order."""

    def report(self, client_id: str) -> ClientReport | None:
        """Return what can be said of a client now; None where it has no session."""


class PluginContext(NamedTuple):
    """What a plugin is given of the broker when it is made.

    Attributes:
        logger: the plugin's own logger.
        policy_file: name of the policy file, for messages; relative paths in it are taken
            from the directory the program was started in.
        clock: returns monotonic seconds, on the same clock as every `now`.
        listeners: names of the listeners in the policy file.
        clients: knows the clients once the plugin is started; None where there is no broker, as
            in the edge proxy.
    """

    logger: logging.Logger
    policy_file: str
    clock: Callable[[], float]
    listeners: Sequence[str] = ()
    clients: ClientReports | None = None


class Plugin:
    """A plugin of the policy file: a config class and any of the extension points.

    A distribution offers one under a short name in the entry-point group ``penstock.plugins``.
    `Config` is a frozen dataclass that checks itself; its keys are those under the plugin's name.
    `open_files` are for connections of the plugin's own; MQTT clients do not get them.
    """

    Config: ClassVar[type]

    gate: DeliveryGate | None = None
    sampler: LinkSampler | None = None
    payload_store: PayloadStore | None = None
    sinks: Sequence[MessageSink] = ()
    access: AccessControl | None = None
    authenticators: Sequence[Authenticator] = ()
    callbacks: Callbacks | None = None
    open_files: int = 0

    def __init__(self, config: Any, context: PluginContext) -> None:
        self.config = config
        self.context = context

    async def start(self) -> None:
        """Open what needs the running loop; called before any listener opens.

        Raises:
            PenstockError: the plugin cannot work; the broker ends with status 2.
        """

    async def reload(self) -> Sequence[str]:
        """Read files again, at SIGHUP; return each behind its key: ``acl_file /etc/acl``.

        Raises:
            PenstockError: it cannot be used, and the plugin goes on with what it has.
        """
        return ()

    async def close(self) -> None:
        """Finish what was accepted and free everything; called after all listeners closed."""
