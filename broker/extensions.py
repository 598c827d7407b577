"""The points at which plugins meet the broker.

Each extension point is one base class. A plugin subclasses it and overrides what it needs; the
defaults do what the broker does without it. The broker finds out once, when it starts, what is
overridden, and does not call the rest. All methods are plain functions on the loop's thread.

* `DeliveryGate`: may this message go to this subscriber now, or look again when?
* `LinkSampler`: what does a subscriber's path look like?
* `PayloadStore`: where does a payload live?
* `MessageSink`: a route target that is not a session.
* `MessageSource`: feeds subscriptions of its own.
* `SessionOwner`: may this broker have a client's session now?
* `SessionStore`: where do sessions live that outlive their connection?

`penstock.broker.access_control` has those about clients: who may connect, and do what with which
topic. `penstock.broker.events` has what a plugin can be told of, and
`penstock.broker.operations_contract` what it can see and do for an operator. A `Plugin` brings any
of these; the policy file names it. ``docs/how-to/plugins.md`` shows each.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

from penstock.broker.access_control import AccessControl, Authenticator
from penstock.broker.client_report import PassageFigures
from penstock.broker.counters import Metric
from penstock.broker.events import Callbacks
from penstock.broker.link import Link
from penstock.broker.message import Message, SizeClass
from penstock.broker.operations_contract import Operations, UplinkState
from penstock.broker.payload import Payload
from penstock.broker.session_rows import Changes, DeliveryRow, MessageRow, Stored

if TYPE_CHECKING:
    import asyncio

ENTRY_POINT_GROUP: Final = "penstock.plugins"
"""Entry points of distributions in this group offer plugins under short names."""

Method = TypeVar("Method", bound=Callable[..., Any])


def overridden(method: Method, default: Callable[..., Any]) -> Method | None:
    """Return a method of an extension; None where it is the base class's and need not be called.

    The broker asks this once, when it starts.
    """
    return None if getattr(method, "__func__", None) is default else method


class Verdict(NamedTuple):
    """A gate's answer.

    Attributes:
        deliver: True to send the message now.
        look_again_at: monotonic seconds at which to ask again at the latest; None for
            "when the link changes". Ignored when `deliver` is True.
        reason: a few words for logs and reports, such as ``L_now 0.8 s >= 0.25 s``.
        cause: one word for it, which decisions are counted by: lower-case letters and ``_``, of a
            set that is small, as `penstock.broker.outbox.large_messages.CAUSES`.
    """

    deliver: bool
    look_again_at: float | None = None
    reason: str = ""
    cause: str = ""


class Decision(NamedTuple):
    """A gate's answer about one message, as reports tell of it later.

    Attributes:
        verdict: the answer.
        topic: Topic Name of the message.
        payload_bytes: the payload bytes of the message.
        sojourn: seconds for which it had been withheld then (ΔS of paper 002).
        at: monotonic seconds of the answer.
    """

    verdict: Verdict
    topic: str
    payload_bytes: int
    sojourn: float
    at: float


class DeliveryGate:
    """Decides when a large message may go to one subscriber. As it is, no message is large.

    A gate that raises is logged and counted, and the message is delivered.

    Attributes:
        keeps_topics: a small message waits behind a withheld large one of its topic, as
            [MQTT-4.6.0-6] has it; False: it passes.
        supersedes: a large message of QoS 0 that waits gives way to the next one of its topic.
        probe_period: seconds between two looks at each subscriber (T_Q of paper 002): the least
            `LinkSampler.period` of all plugins, set once they are loaded. 1 s where none looks.
        policy_name: a label of what is counted of its decisions; "" for the name of its class.
    """

    keeps_topics: bool = True
    supersedes: bool = False
    probe_period: float = 1.0
    policy_name: str = ""

    def threshold_s(self, topic: str) -> int | None:  # noqa: ARG002 (a default, as all below)
        """Return the payload size in bytes above which messages of `topic` are large.

        Asked once for each topic and cached. None: no message of this topic is large. Where it
        depends on the subscriber, it is the least of all, and `is_large` says more.
        """
        return None

    def is_large(self, message: Message, link: Link) -> bool:  # noqa: ARG002
        """Say whether a message above `threshold_s` of its topic is large for this subscriber."""
        return True

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:  # noqa: ARG002
        """Say whether `message`, withheld for `sojourn` seconds so far, may go now.

        Asked when a large message reaches the head of an outbox that has room, whenever the
        link has changed, and when the last verdict's `look_again_at` has come.
        """
        return Verdict(deliver=True, reason="no gate")

    def is_first(self, topic: str) -> bool:  # noqa: ARG002
        """Say whether messages of a topic leave before all others; always the same of one topic."""
        return False

    def threshold_l(self, link: Link) -> float | None:  # noqa: ARG002
        """Return the RTT in seconds above which the gate takes this path for congested now.

        Asked for reports alone. None: the gate has no such threshold.
        """
        return None

    def connected(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> str:  # noqa: ARG002
        """Take note of a subscriber that has connected; its link has its names and its listener.

        Of a client whose CONNECT has no user properties, and whose session is new and not durable,
        it is told when the client subscribes.

        Args:
            link: the link of the subscriber.
            user_properties: those of its CONNECT, in their order; none before MQTT 5.0.

        Returns:
            The properties that are ignored, and why, for log and counters; "" for none.
        """
        return ""

    def observe(self, link: Link) -> None:
        """Take note of a link that may have a new RTT estimate, whether or not anything waits.

        The same estimate may be shown more than once.
        """

    def large_sent(self, link: Link, payload_bytes: int, now: float) -> None:
        """Take note of a large message of QoS 1 or 2 that is handed to the connection.

        Also of one that an earlier connection has left unacknowledged, and that is sent again.
        """

    def large_acknowledged(self, link: Link, now: float) -> bool:  # noqa: ARG002
        """Take note of the PUBACK or PUBREC of one of them; clients answer in the order of sending.

        Returns:
            Whether the gate is to be asked again about what the subscriber has withheld.
        """
        return False

    def passage(self, link: Link, now: float) -> PassageFigures | None:  # noqa: ARG002
        """Return what is known of a subscriber's large messages, for reports; None for nothing."""
        return None

    def forget(self, link: Link) -> None:
        """Drop whatever is kept for this subscriber: its session has ended."""


class LinkSampler:
    """Writes what it learns of a subscriber's path into its `Link`. As it is, it learns nothing.

    `sample` and `acknowledged` return True when the link has a new RTT estimate, after which the
    gate is asked again for what that subscriber has withheld. A sampler that raises is logged and
    counted.

    A sampler may have messages of its own sent, to time them: with a `probe_topic`, every connected
    client that has subscribed to it by that very name, at QoS 1 or 2, is sent a QoS 1 message in
    each period, for itself alone; but none while an earlier one is unacknowledged. `acknowledged`
    tells of the PUBACK.

    Attributes:
        period: seconds between two calls of `sample` for each connected subscriber (T_Q of
            paper 002); None where the sampler needs none.
        probe_topic: Topic Name of probes, valid; None where none are sent.
        probe_payload: the payload of each probe.
        is_sparing: the sampler says in the link what it would ignore. A broker whose only sampler
            it is does not call `sent` before `Link.quiet_until`, nor `acknowledged` while
            `Link.outstanding_since` is None.
    """

    period: float | None = None
    probe_topic: str | None = None
    probe_payload: bytes = b""
    is_sparing: bool = False

    def sample(self, link: Link, fileno: int, now: float) -> bool:  # noqa: ARG002
        """Look at the connection's socket, given by its file descriptor (-1 for none)."""
        return False

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Take note of a QoS 1 or 2 PUBLISH handed to the connection for the first time."""

    def sent_run(
        self, link: Link, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> None:
        """Take note of several at once, by `sent` for each unless overridden.

        Their Packet Identifiers follow the first one; `payload_bytes` are those of each.
        """
        for packet_id in range(first_packet_id, first_packet_id + n_packets):
            self.sent(link, packet_id, payload_bytes, now)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:  # noqa: ARG002
        """Take note of the PUBACK or PUBREC of one of them."""
        return False

    def acknowledged_run(
        self, link: Link, first_packet_id: int, n_packets: int, now: float
    ) -> bool:
        """Take note of several at once, by `acknowledged` for each unless overridden."""
        has_news = False
        for packet_id in range(first_packet_id, first_packet_id + n_packets):
            if self.acknowledged(link, packet_id, now):
                has_news = True
        return has_news

    def probe_sent(self, link: Link, packet_id: int, now: float) -> None:
        """Take note of a probe handed to the connection; `sent` is not called for it."""

    def connected(self, link: Link, now: float) -> None:
        """Take note of a new network connection of the subscriber: what was outstanding is void.

        Of a new client it may be told when the client subscribes, as `DeliveryGate.connected` is.
        """

    def forget(self, link: Link) -> None:
        """Drop whatever is kept for this subscriber: its session has ended."""


class PayloadStore:
    """Keeps payloads that wait for at least one target, of more than `STORED_ABOVE_BYTES`.

    Others stay with their messages. As it is, the store keeps each by reference: one immutable
    `bytes`, freed by Python with its last reference. Paper 002 calls this lazy allocation: a
    subscriber's queue refers to the one stored message, and the packet is built only when it can
    be sent.
    """

    def keep(self, data: bytes) -> Payload:
        """Return what stands for `data` until its last reference is gone.

        Raises:
            OSError: it cannot be kept; the publish is refused.
        """
        return data

    def copy(self, payload: Payload) -> Payload:
        """Return what stands for a payload of the store, for one subscriber more.

        Overridden by a store that keeps a payload for each subscriber, to be called for each.
        """
        return payload

    def figures(self) -> Mapping[str, int]:
        """Return figures by their names below ``$SYS/broker/penstock/payload_store/``."""
        return {}


class Receipt(Protocol):
    """A sink's promise to the publisher of one QoS 1 or 2 message."""

    @property
    def deduplication_id(self) -> bytes:
        """The bytes that identify the message and its repeats, or b"" for none.

        It is the same when the client sends the message again after the broker was killed, if the
        session outlives that. A message of QoS 2 has one, and one of QoS 1 that is a repeat itself.
        """

    @property
    def is_repeat(self) -> bool:
        """True if the message may be the repeat of one that is stored (DUP).

        Where it is not, it is stored whatever is stored under its identifier.
        """

    def settle(self, reason_code: int) -> None:
        """Report the outcome, once, on the loop's thread.

        Args:
            reason_code: 0 when the message is safe; 0x80 or above when it is refused. With 0x8B
                (server shutting down) the client is disconnected, and sends it again elsewhere.
        """


@dataclass(slots=True)
class SinkCounts:
    """A sink's side of the ledger: matched = stored + queued + sum(dropped). The sink counts.

    Attributes:
        matched: messages the router offered.
        stored: messages that are safe in the sink.
        queued: messages taken and not yet safe.
        dropped: refused or lost messages by reason.
    """

    matched: int = 0
    stored: int = 0
    queued: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


NEVER_FITS: Final = "too_large"
"""The reason of a `MessageSink` for a message that is larger than all that it may hold."""


class SinkRun(NamedTuple):
    """PUBLISH packets of one publisher and QoS that came together, for the same sinks.

    Attributes:
        packets: whole packets, one after the other, as they came, correct and without Topic Alias,
            DUP and RETAIN. The Packet Identifiers of QoS 1 and 2 are the publisher's.
        n_messages: how many.
        version: the protocol version in whose form they are, 4 or 5.
        qos: of all.
        publisher: Client Identifier.
    """

    packets: bytes
    n_messages: int
    version: int
    qos: int
    publisher: str = ""


class MessageSink(ABC):
    """A route target that is not a session, such as a pull queue.

    A sink that raises is logged and counted, and the publish is refused.

    Before anybody gets a message of QoS 1 or 2, the broker calls `reserve` of each of its sinks.
    Where one refuses, neither sinks nor subscribers get the message, and the publisher is refused
    (reason code 0x97) or waits (MQTT 3.1.1). So no subscriber gets a message once more each time a
    refused publisher repeats it. Messages of QoS 0, wills and the broker's own go to subscribers
    all the same, and `refuse` tells the sink that it does not get them. As it is, a sink has room
    for everything.

    A sink that overrides `accept_run` is given messages that came together as one `SinkRun`, where
    all other sinks of their topic take runs, too. Every other message comes by `accept`.

    Attributes:
        name: unique among the broker's sinks.
        topic_filters: MQTT topic filters; a message that matches several is offered once. They are
            read when the sink is added; `SinkRoutes` changes them later.
        counts: the sink's side of the ledger.
        sizes: the size class of the messages that it is offered; None for both. A sink that has one
            is given no runs.
        takes_retained: it is offered every message with RETAIN, whatever its topic, except those
            below ``$SYS``; also one without payload, which removes what is retained.
        on_room: set by the broker. A sink calls it when it has room again after `reserve` has
            refused; without the call, publishers that wait try again twice a second.
    """

    name: str
    topic_filters: Sequence[str]
    counts: SinkCounts
    sizes: SizeClass | None = None
    takes_retained: bool = False
    on_room: Callable[[], None] = staticmethod(lambda: None)

    def reserve(self, message: Message) -> str:  # noqa: ARG002 (a default, as those below)
        """Hold room for a message until `accept` or `release`; nothing is counted.

        Returns:
            "" where there is room: `accept` must not refuse the message for a limit then. Otherwise
            the reason, one word of lower-case letters and ``_``: `NEVER_FITS` where there will
            never be room for the message, so that no publisher waits with it.
        """
        return ""

    def release(self, message: Message) -> None:  # noqa: B027 (a default)
        """Give back the room of a message that `reserve` has held: it is not routed."""

    def refuse(self, message: Message, reason: str) -> None:  # noqa: ARG002
        """Count a message that the sink does not get, for the reason that `reserve` has given."""
        counts = self.counts
        counts.matched += 1
        counts.dropped[reason] = counts.dropped.get(reason, 0) + 1

    @abstractmethod
    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message, for which there is room, without waiting.

        The receipt, which messages of QoS 1 and 2 have, is settled by the sink once the message is
        safe or refused.
        """

    def reserve_run(self, n_messages: int, n_bytes: int) -> bool:  # noqa: ARG002
        """Hold room for a run of QoS 1 or 2 until `accept_run` or `release_run`.

        Returns:
            False where there is none for the `n_bytes` of its packets: nothing is counted, and the
            messages are offered one by one.
        """
        return True

    def release_run(self, n_messages: int, n_bytes: int) -> None:  # noqa: B027
        """Give back the room that `reserve_run` has held: the messages are offered one by one."""

    def accept_run(self, run: SinkRun, receipt: Receipt | None) -> None:
        """Take messages, without waiting; see the class. It counts them itself.

        Args:
            run: the messages. Room is reserved for those of QoS 1 and 2; of QoS 0 the sink may drop
                any, for a reason in its counts.
            receipt: settled once all are safe, or refused; None for QoS 0.
        """
        raise NotImplementedError

    def forget(self, deduplication_id: bytes, done: Callable[[bool], None]) -> None:  # noqa: ARG002
        """Forget a deduplication identifier: the client may use it for another message after that.

        Args:
            deduplication_id: the identifier, as receipts have it; the sink may not have seen it.
            done: called once, on the loop's thread, with True when a crash cannot bring the
                identifier back, or with False where that cannot be ensured. Then the broker asks
                again later, and the client waits.
        """
        done(True)


Outcome: TypeAlias = Literal["acknowledged", "refused", "returned", "unsent"]
"""The fate of a message that a consumer was given: its PUBACK, with a reason code below 0x80 or
not; the end of the connection that it was sent on; or nothing was sent."""


class Consumer(Protocol):
    """The subscription of a connected client to a `MessageSource`."""

    @property
    def client_id(self) -> str:
        """Client Identifier."""

    def room(self) -> int:
        """Return how many messages the client can be given at this moment.

        It is what its Receive Maximum and the broker's own limits leave; 0 while its connection is
        congested. `Feed.wake` is called when an acknowledgement has made room; other causes are
        found by asking again.
        """

    def give(self, message: Message, done: Callable[[Outcome], None], now: float) -> None:
        """Send the client a message, or let it wait behind others; a large one passes the gate.

        Args:
            message: the message with the topic, payload and properties that the client is to get.
            done: called once with what became of it, maybe before this returns. At QoS 0 that is
                at once.
            now: monotonic seconds.
        """

    def find_lost(self) -> None:
        """Call `done` with ``refused`` for messages that were dropped, such as too large ones.

        To be called every few seconds while messages are not done.
        """


class Feed(Protocol):
    """A source's side of one consumer."""

    def wake(self) -> None:
        """Look at `Consumer.room` again."""

    def stop(self) -> None:
        """Give no more: the connection or the subscription has ended.

        Messages that were sent to a client that has unsubscribed are still to be done.
        """


class MessageSource(ABC):
    """Feeds subscriptions to topic filters of its own, such as those of consumers of a pull queue.

    A message goes to one consumer, and the source learns what became of it. Nothing is published to
    such a subscription, nothing is retained for it, and it gets QoS 1 at most.

    Attributes:
        prefix: first level of its topic filters, such as ``$queue``; it begins with ``$``.
    """

    prefix: str

    @abstractmethod
    def refusal(self, topic_filter: str) -> str:
        """Return why a client cannot subscribe to a filter; "" where it can."""

    def asked_topic(self, topic_filter: str) -> str:
        """Return the topic that access control must let the client subscribe to and receive."""
        return topic_filter

    @abstractmethod
    def open(self, topic_filter: str, consumer: Consumer) -> Feed:
        """Begin to feed a consumer, also one whose session was restored."""


class SinkRoutes(Protocol):
    """The broker's sinks while it runs, on the loop's thread."""

    def add(self, sink: MessageSink) -> None:
        """Offer messages to one more sink from now on.

        Raises:
            PenstockError: a sink has its name, or a topic filter is not valid.
        """

    def remove(self, sink: MessageSink) -> None:
        """Offer a sink nothing more; it may still be asked to `accept` what it has reserved.

        Nothing happens where the sink is not one of the broker's.
        """

    def add_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Offer a sink of the broker what matches one more topic filter.

        Nothing happens where it has the filter. What that costs does not depend on the number of
        filters.

        Raises:
            PenstockError: the topic filter is not valid, or the sink is not one of the broker's.
        """

    def remove_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Offer a sink no more what matches a topic filter alone; it may not have the filter."""


class SessionOwner:
    """Says when this broker may have a client's session, where other brokers may have it, too.

    As it is, the broker has every session at once. A method that returns None costs no wait; it may
    be ``async``, too. It is not asked about `LocalClients`.

    An owner may also *keep* sessions that outlive their connection: what waits for them is in its
    hands, and the broker has such a session only while its client is connected. The plugin brings a
    `SessionStore` for them.

    * Subscriptions of a kept session are no route targets of the broker: the owner sees to it that
      messages for them come to where it keeps what waits. Retained messages come as for any other
      session, and so does what the broker itself has below ``$``, such as ``$SYS``.
    * The client is given what waits by `LocalClients.deliver`, from `SessionStore.drained` on, as
      much as the owner likes.
    * When its connection has ended, what has changed is written to the store. Then the session is
      gone from the broker's memory and `unloaded` is called. Its will is published before, also one
      that is delayed. A session that ends (expiry, Clean Start) ends as any other.
    """

    def claim(
        self,
        client_id: str,  # noqa: ARG002 (a default, as those below)
        *,
        clean_start: bool,  # noqa: ARG002
    ) -> Awaitable[Stored | None] | None:
        """Make this broker the one that has a client's session, before that is opened.

        Args:
            client_id: Client Identifier of an authenticated client.
            clean_start: Clean Start, or Clean Session, of its CONNECT.

        Returns:
            None where the session may be opened at once, and is then. Else what is awaited before
            the broker asks again, if the client is still there. Its result is None, or a kept
            session that is to be resumed and that the broker does not have
            (`LocalClients.subscriptions`): its row, subscriptions, packet identifiers and what is
            inflight, in the order of sending; all numbers of rows are by `LocalClients.take_rows`.
            The broker has it when it asks again; a client that has gone leaves nothing of it.

        Raises:
            PenstockError: also from what is awaited: the client is refused (Server unavailable),
                and told why. After any other exception, it is logged and refused.
        """
        return None

    def routed(self) -> Awaitable[None] | None:
        """Return what is awaited before SUBACK, so that subscriptions hold on every broker then.

        It is asked once they are added. What it raises is logged, and SUBACK is sent.
        """
        return None

    def keeps(self, client_id: str, expiry_interval: float | None) -> bool:  # noqa: ARG002
        """Say whether a new session is kept, until it ends.

        Args:
            client_id: Client Identifier.
            expiry_interval: seconds for which the session outlives its connection; None for ever.
        """
        return False

    def unloaded(self, client_id: str) -> None:
        """Take note that a kept session is gone from memory, and has not ended.

        All that has changed was written to the store before, except after `LocalClients.drop`.
        """


class SessionStore(ABC):
    """Where a `SessionOwner` keeps sessions; it takes the place of the policy's `persistence`.

    A batch (`penstock.broker.session_rows`) is what has changed since the batch before. It has rows
    of kept sessions only, no retained messages and no wills. A session is known by the number of
    its row.

    * `SessionRow`: the session is new, or its values have changed; `lost_at` is set once its
      connection has ended.
    * `DeliveryRow`: it is new, with its message in `messages`; no `LocalClients.deliver` has
      brought it.
    * `moved_deliveries`: one that is known has another packet identifier or state. Its number is
      that of the `Mail` by which it came.
    * `gone_deliveries`: it is done with: acknowledged, expired or dropped.
    * `gone_messages` says nothing beyond that.

    A session may end and another of its client begin in one batch: `gone_sessions` come first. A
    change of a session that is not known any more, as it was dropped, is to be ignored.
    """

    @abstractmethod
    async def write(self, batch: Changes) -> None:
        """Store the changes of one commit; the next batch comes once this returns.

        Raises:
            PenstockError: the store refuses. The same batch comes again, and meanwhile no client is
                told that what is in it is safe.
        """

    def subscribed(self, client_id: str, topic_filters: Sequence[str]) -> None:  # noqa: B027
        """Take note of filters that a session did not have, ``$share/...`` among them.

        Those of a session that `SessionOwner.claim` has returned are not told again.
        """

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:  # noqa: B027
        """Take note that a session has a filter no more; not told of one that has ended."""

    def drained(self, client_id: str) -> None:  # noqa: B027
        """Take note that a session has room, and nothing small waits that it has been given.

        It is called when its client has connected, and again and again; it must not call the
        broker, and cost next to nothing where nothing is left to give.
        """

    def epoch(self) -> float:
        """Return the seconds of the store's clock at which the monotonic clock was 0.

        All times of rows are of that clock.
        """
        return 0.0


class Mail(NamedTuple):
    """A message that waits for a kept session, as its owner gives it.

    Attributes:
        message: its number is one of `LocalClients.take_rows`, and that of its delivery.
        share: topic filter of the shared subscription by which it comes; "" for those of its own.
        is_repeat: it may have been sent before: at QoS 1 it is sent with DUP.
    """

    message: MessageRow
    share: str = ""
    is_repeat: bool = False


class MailRun(NamedTuple):
    """Messages of one publisher and QoS that wait for a kept session, by its own subscriptions.

    None of them may have been sent before.

    Attributes:
        row: the number of the first message and its delivery; that of each other one is the next.
        packets: whole packets, one after the other, as in `SinkRun`.
        n_messages: how many.
        version: the protocol version in whose form they are, 4 or 5.
        qos: of all, 0 or 1.
        publisher: Client Identifier.
        arrived_at: monotonic seconds of the first.
    """

    row: int
    packets: bytes
    n_messages: int
    version: int
    qos: int
    publisher: str
    arrived_at: float


LOCAL_CLIENT_PREFIX: Final = "$uplink/"
"""Client Identifiers of `LocalClients` begin so; they are refused to all other clients."""

RELAY_CLIENT_PREFIX: Final = f"{LOCAL_CLIENT_PREFIX}$relay/"
"""Client Identifiers of relays begin so: local clients that publish what a user has handed to a
plugin. Access control judges a relay as the user that its CONNECT names. A message that finds no
room waits for it, as one of an MQTT 3.1.1 client does, and `QOS_PROPERTY` is read."""

QOS_PROPERTY: Final = "penstock-qos"
"""The last User Property of a message that a relay publishes: the QoS that it has for all other
clients. The relay itself publishes at QoS 2, by which a repeat after a crash is recognised."""

PUBLISHER_PROPERTY: Final = "penstock-publisher"
"""The User Property with the Client Identifier of a message's publisher, for clients that get it.
"""

UPLINK_PROPERTIES: Final = 16
"""Uplinks may add so many User Properties to a message, beyond those of its publisher: publisher,
first site, hops, and the name of each other site where it was."""


class LocalClients(Protocol):
    """Connects clients in the broker's own process, on the loop's thread.

    Such a client speaks MQTT on a transport in memory, and is a client as any other: it has a
    session, limits of its outbox, a report. But it is not authenticated, access control judges only
    relays (`RELAY_CLIENT_PREFIX`), its session never expires unless it forwards what another broker
    has routed (then it ends with its connection), and it counts for no limit of
    connections or sessions. A plugin that connects any sets `Plugin.has_local_clients`.

    Attributes:
        receive_maximum: QoS 1 and 2 messages that a client may have unacknowledged.
        maximum_packet_size: bytes of the largest packet that a client may send.
        queue_limits: the policy's `queued_messages`, `queued_bytes`, `queue_full` and
            `queue_full_seconds` below `limits`.
    """

    @property
    def receive_maximum(self) -> int: ...  # noqa: D102 (above)

    @property
    def maximum_packet_size(self) -> int: ...  # noqa: D102 (above)

    @property
    def queue_limits(self) -> tuple[int, int, str, float | None]: ...  # noqa: D102 (above)

    def subscriptions(self, client_id: str) -> Sequence[str] | None:
        """Return the topic filters of a client's session, from `Plugin.restored` on; or None."""

    def connect(
        self,
        protocol: asyncio.Protocol,
        *,
        tells_publisher: bool = False,
        is_patient: bool = False,
        is_forwarded: bool = False,
        share: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> asyncio.Transport:
        """Connect a client; `protocol.connection_made` is called before this returns.

        Flow control is asyncio's, both ways. The loop hands over later what is written.

        What a client publishes with `is_forwarded` was routed by another broker: it goes to
        sessions that have a subscription of their own, and neither to sinks nor to shared
        subscriptions. Nothing of it is retained: RETAIN counts for Retain As Published alone. No
        callback is told that it was received or routed.

        Args:
            protocol: the client's, whose CONNECT names a client id below `LOCAL_CLIENT_PREFIX`.
            tells_publisher: messages for it carry `PUBLISHER_PROPERTY`, behind all others.
            is_patient: what it publishes at QoS 1 and 2 waits for room and for the disk, and is
                never refused: for a client that forwards what others were told is safe.
            is_forwarded: what it publishes was routed by another broker; see above.
            share: with `is_forwarded`: ``$share/{ShareName}/{filter}``, a shared subscription. Each
                message goes to one member of it and to nobody else. Where none can take it now, a
                message of QoS 1 or 2 is refused with 0x97, also with `is_patient`; in MQTT 3.1.1
                the connection ends, and neither it nor those behind it are acknowledged.
            extra: what `get_extra_info` returns on the broker's side; with ``socket``, samplers
                look at that socket for the path to the subscriber.
        """

    async def publish_problem(
        self, client_id: str, first_byte: int, topic: str, properties: bytes, payload: bytes
    ) -> str:
        """Return why the broker would refuse a PUBLISH of a relay at this moment, or "".

        Room is not checked.

        Args:
            client_id: the Client Identifier of a relay that has a session.
            first_byte: that of the PUBLISH, with the QoS that the message has for other clients.
            topic: a valid Topic Name.
            properties: the encoded properties, with their length before them.
            payload: the payload.
        """

    def limit(
        self,
        client_id: str,
        *,
        messages: int | None,
        n_bytes: int | None,
        drops_oldest: bool,
        refuses: bool,
    ) -> None:
        """Give the outbox of a client's session its own limits, until the broker ends.

        Args:
            client_id: the Client Identifier; the client must have a session.
            messages: messages that may wait; None for the limit of all clients.
            n_bytes: payload bytes that may wait; None for the limit of all clients.
            drops_oldest: the message that has waited longest is dropped, not the new one.
            refuses: publishers of new messages are refused, or wait; also while the client is away.

        Raises:
            PenstockError: `refuses` does not go with the broker's own `limits.queue_full`.
        """

    def explain(self, client_id: str, why: Callable[[], str]) -> None:
        """Add to each report of a client what `why` returns then, such as why it is away."""

    def name_site(self, site: str) -> None:
        """Tell uplinks that connect to this broker to which site it belongs."""

    def keep_order(self, one: str, other: str) -> None:
        """Send two clients the messages of each topic in one order, until the broker ends.

        A message does not leave for one of them while an earlier one of its topic waits for the
        other or is unacknowledged by it, unless `DeliveryGate.keeps_topics` is False. The call may
        be repeated; it has no effect while one of the clients has no session. For restored sessions
        it must come before one of the clients connects: a message that was sent does not wait.

        Args:
            one: the Client Identifier of a client.
            other: that of another client, which gets no message by the same subscription.
        """

    def take_over(self, client_id: str, *, is_away: bool) -> None:
        """Give what waits and comes for a client of `keep_order` to the other one.

        The client has no connection. With `is_away` False, that ends.
        """

    def give_up_order(self, client_id: str) -> int:
        """Let a client's unacknowledged messages hold back nothing until it is back.

        It is one of two clients of `keep_order`, of which `take_over` has said that it is away.
        Their number is returned.
        """

    def hand_over(self, client_id: str, packet_id: int | None = None) -> int:
        """Give the other client of `keep_order` what was sent to one, and what waits for it.

        Args:
            client_id: one of two clients of `keep_order`.
            packet_id: one message that it has not acknowledged and that was not taken. None for all
                messages of a client that is not connected; those that it has acknowledged by PUBREC
                count as delivered.

        Returns:
            The number of messages for the other client that may have been taken before.
        """

    def drop_older(self, client_id: str, seconds: float) -> None:
        """Drop what has waited for a client for longer, as ``too_old``."""

    def note_clears(self, n_topics: int) -> None:
        """Remember for `cleared_retained` which topics were cleared last, at most so many."""

    def retained_number(self, client_id: str) -> int | None:
        """Return the number of the last change of retained messages.

        None while anything waits for the client that it has not read; what it was sent may be
        unacknowledged.
        """

    def cleared_retained(
        self, filters: Mapping[str, int], *, after: int, except_of: str
    ) -> dict[str, int]:
        """Return topics that have no retained message any more, with the QoS of their filter.

        Args:
            filters: valid topic filters, to their QoS.
            after: a `retained_number`; only later clears and expiries count.
            except_of: clears by Client Identifiers that begin so do not count.
        """

    def lacking_retained(
        self, client_ids: Sequence[str], filters: Mapping[str, int], *, after: int, except_of: str
    ) -> dict[str, int]:
        """Return topics whose retained messages some clients neither have nor will get.

        Args:
            client_ids: the clients; a message may wait for them or be unacknowledged.
            filters: valid topic filters, to their QoS.
            after: a `retained_number`; only messages that were set later count.
            except_of: messages of publishers whose Client Identifiers begin so do not count.
        """

    def repeat_retained(
        self, client_id: str, topic: str, qos: int, sizes: SizeClass | None
    ) -> bool | None:
        """Send a client the retained message of a topic, or its clear, as if just published.

        Args:
            client_id: the Client Identifier.
            topic: the Topic Name.
            qos: the maximum QoS.
            sizes: the size class that the client takes; None for both.

        Returns:
            Whether it was sent; False where it is of the other class. None where the client is away
            or has enough that waits, so that the call must be repeated later.
        """

    def waiting(self, client_id: str) -> int:
        """Return how many messages wait for a client, or are unacknowledged by it."""

    def backlog(self, client_id: str) -> tuple[int, int, float | None, float | None]:
        """Return what waits for a client, for reports.

        Returns:
            (messages that wait or are unacknowledged, payload bytes of those that wait, the age in
            seconds of the oldest that waits, the newest RTT of its path in seconds).
        """

    def retained(self, topic_filter: str, publisher: str) -> Sequence[tuple[str, int]]:
        """Return (topic, payload bytes) of a publisher's retained messages that match a filter."""

    def set_retained(
        self, packet: bytes, version: int, *, publisher: str = "", age: float = 0.0
    ) -> bool:
        """Take over a retained message, or its clear, that another broker has accepted.

        Subscribers do not get it, nor do sinks; callbacks that tell of retained messages do.

        Args:
            packet: a whole PUBLISH packet, without Topic Alias; one without payload removes what
                its topic has. It counts as retained, with RETAIN or without.
            version: the protocol version in whose form it is, 4 or 5.
            publisher: Client Identifier of who has published it.
            age: seconds since it was published, of which its Message Expiry Interval is reduced.

        Returns:
            False where the topic has no retained message now for want of room.

        Raises:
            PenstockError: the packet is not correct.
        """

    def walk_retained(self) -> Iterator[Message]:
        """Yield what is retained, except below ``$SYS``, each message once.

        Between two of them the loop may do other things: messages that are set or removed
        meanwhile may be among them or not, all others are.
        """

    def show_retained(self, prefix: str, show: Callable[[Message, int], Iterator[Message]]) -> None:
        """Send new subscriptions below a prefix other forms of what is retained.

        A subscription to ``PREFIX F`` gets, as retained messages, what `show` returns for each
        retained message of ``F``. These are read one by one as the client takes them, until another
        message is retained in the topic. The broker sets the size class of each. Call this in
        `Plugin.start`.

        Args:
            prefix: topic levels, with a ``/`` at the end.
            show: gets a retained message and its number, which is unique while the broker runs.
                Neither it nor its iterator may raise. The messages that it returns are not
                retained, and their topics are below the prefix.
        """

    def subscriptions_of_others(self) -> Iterable[tuple[str, str, int]]:
        """Return (client id, topic filter, QoS) of every subscription of other clients."""

    def all_subscriptions(self) -> Iterable[tuple[str, str]]:
        """Return (client id, topic filter) of every subscription, also of these clients."""

    def release(self, client_id: str, reason_code: int, *, ends: bool = False) -> None:
        """Let go of a client that another broker has: close its connection and end its session.

        An MQTT 5 client is told the reason code, such as 0x8E. A kept session does not end: it is
        unloaded. Its will is published, as when another connection takes it over, but not one whose
        delay has not passed, unless the other broker `ends` the session, as the client has
        connected there with Clean Start [MQTT-3.1.2-8]. Nothing happens where the client has no
        session.
        """

    def drop(self, client_id: str, reason_code: int) -> None:
        """Forget a kept session at once: it is another broker's. Nothing more of it is written.

        Its connection is closed, and its will is not published. Nothing happens where the client
        has no kept session here. Arguments are as of `release`.
        """

    def take_rows(self, n_rows: int) -> int:
        """Return the first of so many numbers in a row, which no other row will have."""

    async def deliver(self, client_id: str, mail: Sequence[Mail]) -> Sequence[DeliveryRow | None]:
        """Give a kept session some of what waits for it, in order; one call at a time.

        Each message is delivered as the session's subscriptions say: with the greatest QoS of those
        that match, and their identifiers. No limit of an outbox holds.

        Returns:
            For each message what the session has taken, as it is to be stored; the store is told of
            its packet identifier (`moved_deliveries`), and when it is done with. None where nothing
            of it is kept, so that the owner may forget it: the session has no subscription for it
            (any more), may not receive it, or got it at QoS 0; or it has expired. Nothing at all
            where the client is not connected: what waits goes on waiting.
        """

    def deliver_run(self, client_id: str, run: MailRun) -> int | None:
        """Give a kept session the first messages of a run, as `deliver` would, at less cost.

        Returns:
            How many it has taken. What is kept of them at QoS 1 are deliveries of that QoS, without
            RETAIN and identifiers of subscriptions; of QoS 0 nothing is. 0 where its window is
            full: `SessionStore.drained` is called once it has room. None where the first message,
            or any for now, is not for this way: `deliver` takes it.
        """

    def end_sessions(self, is_wanted: Callable[[str], bool]) -> Sequence[str]:
        """End the sessions of those local clients whose ids are wanted, and return the ids."""


class Worker(NamedTuple):
    """Which of the broker's processes on this machine this one is.

    All have one policy file and listen on the same ports; see `Plugin.processes_per_machine`.

    Attributes:
        number: from 1 on.
        total: how many there are.
    """

    number: int = 1
    total: int = 1


ALONE: Final = Worker()
"""The one process of a machine."""


class PluginContext(NamedTuple):
    """The parts of the broker that a plugin is given when it is made.

    Attributes:
        logger: the plugin's own logger.
        policy_file: name of the policy file, for messages; relative paths in it are taken
            from the directory the program was started in.
        clock: returns monotonic seconds, on the same clock as every `now`.
        listeners: names of the listeners in the policy file.
        operations: what an operator may see and do, once the plugin is started; None where there
            is neither a broker nor a proxy.
        is_proxy: the plugin is one of the edge proxy.
        sink_routes: adds and removes sinks while the broker runs, once the plugin is started;
            None where there is no broker.
        local_clients: connects clients in the broker's own process, from `Plugin.restored` on; None
            where there is no broker.
        plugins: the plugins of the file by their names, complete once the plugin is started.
        worker: this process among those of the machine; where a file is only checked, the first.
        policy_keys: returns those of the policy file as it was loaded last; none where there is no
            broker.
    """

    logger: logging.Logger
    policy_file: str
    clock: Callable[[], float]
    listeners: Sequence[str] = ()
    operations: Operations | None = None
    is_proxy: bool = False
    sink_routes: SinkRoutes | None = None
    local_clients: LocalClients | None = None
    plugins: Mapping[str, Plugin] = MappingProxyType({})
    worker: Worker = ALONE
    policy_keys: Callable[[], Mapping[str, Any]] = dict

    def others(self) -> str:
        """Return which others clients of this broker may be at, as text; "" for none."""
        if self.worker.total > 1:
            return f"{self.worker.total} processes of the broker"
        keys = [one.key_of(name) for name, one in self.plugins.items() if one.has_other_brokers]
        return f"other brokers beside this one ({keys[0]})" if keys else ""


@dataclass(frozen=True, slots=True)
class Reload:
    """What a plugin has read and checked for a reload, and how it takes effect.

    Attributes:
        read: the files, each behind its key: ``acl_file /etc/acl``.
        takes: keys below the plugin's name, such as ``threshold_s``, with all below them, whose new
            values count once `apply` is called. Other changed keys need a restart, and are named.
        leaves: paths of keys below them that need a restart all the same.
        apply: makes it all count. It is called once everything else that the program has read is
            good, and else never. It must not raise; what it returns, if anything, is awaited, and
            may raise a `PenstockError`, which is reported.
    """

    read: Sequence[str] = ()
    takes: Sequence[str] = ()
    leaves: Sequence[tuple[str, ...]] = ()
    apply: Callable[[], Awaitable[None] | None] = lambda: None


class Claim(NamedTuple):
    """Something outside of the program that a start of a plugin takes, for ``penstock check``.

    Attributes:
        key: the key below the plugin's name.
        kind: ``address``: it listens at ``HOST:PORT``; ``database``: it writes a file of SQLite.
        name: the address or the file.
        copy: the name of the file's copy in a backup; "" for none.
    """

    key: str
    kind: Literal["address", "database"]
    name: str
    copy: str = ""


class Plugin:
    """A plugin of the policy file: a config class and any of the extension points.

    A distribution offers it under a short name in the entry-point group ``penstock.plugins``. Its
    constructor sets the attributes for the extension points that it brings.

    Attributes:
        Config: a frozen dataclass that checks itself; its fields are the keys under the name.
        is_section: the name stands at the top of the policy file, and not under `plugins`.
        is_one_per_machine: where a machine has several of the broker's processes, the first one
            alone has the plugin, such as one that connects to another broker.
        has_other_brokers: clients and their sessions may be at others, which are one broker with
            this one. Stands at the top of the file, so that all plugins see it when they are made.
        config: an instance of that, from the policy file.
        context: the parts of the broker that the plugin is given.
        gate: a delivery gate; a broker has one.
        sampler: a link sampler, which is told of every subscriber.
        payload_store: a payload store; a broker has one.
        sinks: message sinks, whose names are unique in the broker.
        sources: message sources, whose prefixes are unique in the broker.
        session_owner: a session owner; a broker has one.
        session_store: where that owner keeps sessions; None where it keeps none.
        access: an access control, which is asked beside the other plugins'.
        authenticators: authenticators, whose methods are unique in the broker.
        callbacks: the callbacks of events.
        open_files: file descriptors that the plugin needs, which MQTT clients do not get.
        has_local_clients: whether it connects clients by `PluginContext.local_clients`.
    """

    Config: ClassVar[type]
    is_section: ClassVar[bool] = False
    is_one_per_machine: ClassVar[bool] = False
    has_other_brokers: ClassVar[bool] = False

    config: Any
    context: PluginContext
    gate: DeliveryGate | None = None
    sampler: LinkSampler | None = None
    payload_store: PayloadStore | None = None
    sinks: Sequence[MessageSink] = ()
    sources: Sequence[MessageSource] = ()
    session_owner: SessionOwner | None = None
    session_store: SessionStore | None = None
    access: AccessControl | None = None
    authenticators: Sequence[Authenticator] = ()
    callbacks: Callbacks | None = None
    open_files: int = 0
    has_local_clients: bool = False

    def __init__(self, config: Any, context: PluginContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the key of a plugin of this class in a policy file."""
        return name if cls.is_section else f"plugins.{name}"

    @classmethod
    def processes_per_machine(cls, config: Any) -> int:  # noqa: ARG003 (a default)
        """Return how many processes of the broker a machine is to have, by an instance of `Config`.

        Each is a whole broker, and they have nothing in common but what plugins bring about. The
        highest number of all plugins counts.
        """
        return 1

    async def start(self) -> None:
        """Open what needs the running loop; called before any listener opens.

        Raises:
            PenstockError: the plugin cannot work. The broker ends with status 2 and this message;
                any other exception ends it, too, with the plugin's name and the line that raised.
        """

    async def restored(self) -> None:
        """Begin what needs the broker's sessions, such as `LocalClients`; no listener is open yet.

        Raises:
            PenstockError: as `start`.
        """

    def also_asked(self, topic: str) -> str | None:  # noqa: ARG002 (a default)
        """Return a second topic that access control must allow for this one; None for none.

        The answer is always the same for one topic.

        It is asked about both whenever a client publishes to `topic`, subscribes to it or receives
        it. To subscribe, both are topic filters.
        """
        return None

    def figures(self) -> Iterable[Metric]:
        """Return figures, for `$SYS` and for monitoring; asked for every few seconds.

        Metric ``messages_total`` with labels ``queue="a", reason="full"`` of a plugin with the name
        ``queue`` in the policy file is ``$SYS/broker/penstock/queue/a/messages/full``, and
        ``penstock_queue_messages_total`` in the console: so its name has neither. A histogram is in
        the console alone.
        """
        return ()

    def sys_topics(self, own: Mapping[str, str]) -> Mapping[str, str]:
        """Return what `$SYS` has under mosquitto's names, where that is not this program's alone.

        Args:
            own: what this program has, by topics without `$SYS/broker/`.
        """
        return own

    def uplink_states(self) -> Sequence[UplinkState]:
        """Return how the uplinks are that the plugin keeps."""
        return ()

    async def problem(self) -> str:
        """Return why the plugin cannot serve now, such as a database without an answer; or ""."""
        return ""

    async def backup(self, folder: str) -> int:  # noqa: ARG002 (a default)
        """Write a copy of what is durable into a folder, while all goes on; return its bytes.

        Raises:
            PenstockError: it cannot be written.
        """
        return 0

    async def reload(self, config: Any) -> Reload:  # noqa: ARG002 (a default)
        """Read files again and check what a reload brings; change nothing before `Reload.apply`.

        It is called at SIGHUP, by ``penstock reload``, and by ``penstock check`` of a plugin that
        was made and not started. As it is, a plugin takes no changed key.

        Args:
            config: an instance of `Config`, from the file as it is now; `context` has the names of
                its listeners.

        Raises:
            PenstockError: something cannot be used, and nothing of the program changes.
        """
        return Reload()

    def claims(self) -> Sequence[Claim]:
        """Return what `start` takes outside of the program."""
        return ()

    async def close(self) -> None:
        """Finish what was accepted and free everything; called after all listeners closed."""
