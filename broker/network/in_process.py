"""Clients in the broker's own process speak MQTT on a transport in memory.

Theory of operation. A connection has two ends. What is written at one of them waits, by reference,
at the other, and the loop hands it over to the protocol there, a bounded number of bytes at a time:
no protocol is ever called while another one writes. An end that has more unread bytes than the
writer's high mark pauses the writer, as a full socket would. An end that does not read lets bytes
wait, and so pauses the writer, too.

The broker's end is an `MqttProtocol` as on any socket, so that limits, back-pressure and
withholding work as for any client.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.access_control import RECEIVE
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, Mail, MailRun
from penstock.broker.message import Message, SizeClass
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.reader import read_publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.topics import matches
from penstock.broker.network.admission import Places
from penstock.broker.network.new_connection import AcceptedConnection, Reception
from penstock.broker.network.transport import MqttProtocol
from penstock.broker.outbox.lane_order import join_lanes
from penstock.broker.receiving.publishing import relay_problem
from penstock.broker.sending.sender import TellingSender
from penstock.broker.sending.throttle import ManyThrottle
from penstock.broker.session_rows import DeliveryRow
from penstock.broker.sessions.lanes import lane_of

if TYPE_CHECKING:
    from penstock.broker.durable.journal import Journal
    from penstock.broker.durable.kept_sessions import KeptSessions
    from penstock.broker.network.loop_scheduler import LoopScheduler
    from penstock.broker.sessions.broker_state import Core

LISTENER: Final = "$local"
"""The listener of these clients; the policy file cannot give this name to another."""

MOST_REPEATED: Final = 100
"""Retained messages are repeated only while fewer messages than this wait for a client or are
unacknowledged by it."""

TURN_BYTES: Final = 65_536
"""The loop hands over so much at a time, as a socket would, if several pieces were written."""

_HIGH_BYTES: Final = 65_536
_LOW_BYTES: Final = 16_384
"""Marks of an end whose protocol has set none."""

Buffer = bytes | bytearray | memoryview


class MemoryTransport(asyncio.Transport):
    """One end of a connection in memory.

    Attributes:
        protocol: the protocol of this end.
        other: the other end.
        unread: the bytes that were written at the other end and not received at this one.
        unread_bytes: the number of these bytes.
        is_writer_paused: the protocol of this end was told to write no more.
        low_bytes: unread bytes at the other end from which on it may write again.
        is_ending: this end was closed, or both were aborted.
        is_lost: the protocol of this end was told that the connection is lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, extra: Mapping[str, Any]) -> None:
        super().__init__(dict(extra))
        self._loop = loop
        self.protocol: asyncio.Protocol
        self.other: MemoryTransport
        self.unread: deque[Buffer] = deque()
        self.unread_bytes = 0
        self._is_reading = True
        self.is_scheduled = False
        self.is_ending = False
        self.is_lost = False
        self.is_writer_paused = False
        self.high_bytes = _HIGH_BYTES
        self.low_bytes = _LOW_BYTES

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Let the other end receive bytes; they must not change any more."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Let the other end receive pieces."""
        if self.is_ending:
            return
        other = self.other
        for data in list_of_data:
            if data:
                other.unread.append(data)
                other.unread_bytes += len(data)
        other.schedule()
        if other.unread_bytes > self.high_bytes and not self.is_writer_paused:
            self.is_writer_paused = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which the protocol of this end is paused and resumed."""
        self.high_bytes = _HIGH_BYTES if high is None else high
        self.low_bytes = self.high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the other end has not received."""
        return self.other.unread_bytes

    def can_write_eof(self) -> bool:
        """Return False: both directions end together."""
        return False

    # -- reading ------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Receive again."""
        self._is_reading = True
        self.schedule()

    def is_reading(self) -> bool:
        """Return whether this end receives."""
        return self._is_reading and not self.is_ending

    def schedule(self) -> None:
        """Have the loop hand over what waits, or the end, if this end reads."""
        has_news = self.unread or self.other.is_ending
        if has_news and self._is_reading and not (self.is_scheduled or self.is_lost):
            self.is_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self.is_scheduled = False
        if self.is_lost or not self._is_reading:
            return
        if self.unread:
            if not self.is_ending:  # what comes for a closed end is read and dropped
                self.protocol.data_received(self._take())  # type: ignore[arg-type]
            else:
                self.unread.clear()
                self.unread_bytes = 0
            writer = self.other
            if writer.is_writer_paused and self.unread_bytes <= writer.low_bytes:
                writer.is_writer_paused = False
                if not writer.is_lost:
                    writer.protocol.resume_writing()
            self.schedule()
        elif self.other.is_ending:
            self.lose()
            self.other.lose()

    def _take(self) -> Buffer:
        """Return what is handed over next: one piece, or several small ones joined."""
        unread = self.unread
        data = unread.popleft()
        if unread and len(data) + len(unread[0]) <= TURN_BYTES:
            pieces = [data]
            n_bytes = len(data)
            while unread and n_bytes + len(unread[0]) <= TURN_BYTES:
                piece = unread.popleft()
                n_bytes += len(piece)
                pieces.append(piece)
            data = b"".join(pieces)
        self.unread_bytes -= len(data)
        return data

    # -- the end ------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self.is_ending

    def close(self) -> None:
        """End the connection once the other end has received everything."""
        if not self.is_ending:
            self.is_ending = self._is_reading = True  # what still comes is dropped
            self.other.schedule()
            self.schedule()

    def abort(self) -> None:
        """End the connection; what was not received is dropped."""
        self.is_ending = True
        for end in (self, self.other):
            end.unread.clear()
            end.unread_bytes = 0
            end.is_ending = True
            self._loop.call_soon(end.lose)

    def lose(self) -> None:
        """Tell the protocol of this end, once, that the connection is lost."""
        if not self.is_lost:
            self.is_lost = self.is_ending = True
            self._loop.call_soon(self.protocol.connection_lost, None)


class _LocalConnection(AcceptedConnection):
    """A connection within the process; it takes nobody's place."""

    def accept(self, transport: asyncio.Transport) -> bool:
        """Take the connection, whatever the limits are."""
        self.transport = transport
        self.accepted_at = self.reception.clock()
        return True

    def peer(self) -> str:
        """Return the peer's name for the log."""
        return "a client in the broker's process"


class _LocalProtocol(MqttProtocol):
    """The broker's side of a client in its own process."""

    __slots__ = ("_is_forwarded", "_is_patient", "_share", "_tells_publisher")

    def __init__(
        self,
        driver: LoopScheduler,
        arrival: AcceptedConnection,
        *,
        tells_publisher: bool,
        is_patient: bool,
        is_forwarded: bool,
        share: str,
    ) -> None:
        super().__init__(driver, arrival)
        self._tells_publisher = tells_publisher
        self._is_patient = is_patient
        self._is_forwarded = is_forwarded
        self._share = share

    def _begin(self, since: float) -> None:
        super()._begin(since)
        assert self.connection is not None  # noqa: S101 (just made)
        client = self.connection.client
        client.is_local = True
        client.is_patient = self._is_patient
        if self._is_forwarded:
            client.is_forwarded = True
            client.throttle = ManyThrottle(client.core, client.outgoing)
            self.connection.limits_changed(since)
        client.share = self._share
        if self._tells_publisher:
            client.sender = TellingSender(client.outgoing)


class InProcessClients:
    """The broker's `penstock.broker.extensions.LocalClients`."""

    def __init__(self, driver: LoopScheduler, reception: Callable[[], Reception]) -> None:
        """Prepare; clients can be connected once the broker listens."""
        self._driver = driver
        self._reception = reception

    @property
    def receive_maximum(self) -> int:
        """QoS 1 and 2 messages that a client may have unacknowledged."""
        return self._driver.limits.receive_maximum

    @property
    def maximum_packet_size(self) -> int:
        """Bytes of the largest packet that a client may send."""
        return self._driver.limits.maximum_packet_size

    @property
    def queue_limits(self) -> tuple[int, int, str, float | None]:
        """What may wait for a session, and what happens beyond; see `LocalClients`."""
        limits = self._driver.limits
        seconds = limits.queue_full_seconds
        return limits.queued_messages, limits.queued_bytes, limits.queue_full, seconds

    def subscriptions(self, client_id: str) -> Sequence[str] | None:
        """Return the topic filters of a client's session; None where it has none."""
        session = self._driver.core.sessions.get(client_id)
        return None if session is None else list(session.subscriptions)

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
        """Connect a client; see `penstock.broker.extensions.LocalClients.connect`."""
        driver = self._driver
        ours = MemoryTransport(driver.loop, extra or {})
        theirs = MemoryTransport(driver.loop, {})
        ours.other, theirs.other = theirs, ours
        arrival = _LocalConnection(self._reception(), LISTENER, Places())
        ours.protocol = _LocalProtocol(
            driver,
            arrival,
            tells_publisher=tells_publisher,
            is_patient=is_patient,
            is_forwarded=is_forwarded,
            share=share,
        )
        theirs.protocol = protocol
        ours.protocol.connection_made(ours)
        protocol.connection_made(theirs)
        return theirs

    async def publish_problem(
        self, client_id: str, first_byte: int, topic: str, properties: bytes, payload: bytes
    ) -> str:
        """Say why a PUBLISH of a relay would be refused; see `LocalClients.publish_problem`."""
        core = self._driver.core
        session = core.sessions.get(client_id)
        if session is None:
            return "the relay has no session"
        return await relay_problem(core, session, first_byte, topic, properties, payload)

    def limit(
        self,
        client_id: str,
        *,
        messages: int | None,
        n_bytes: int | None,
        drops_oldest: bool,
        refuses: bool,
    ) -> None:
        """Give the outbox of a client's session limits of its own."""
        core = self._driver.core
        if refuses and not core.room.rejects:
            raise PenstockError(
                "a backlog that refuses publishers (when_full: refuse): "
                f"read limits.queue_full: {core.limits.queue_full}; allowed: reject"
            )
        session = core.sessions.get(client_id)
        if session is not None:
            common = core.outbox_rules
            session.outbox.rules = common.of_one(
                max_messages=messages, max_bytes=n_bytes, drops_oldest=drops_oldest, refuses=refuses
            )
            if session.outbox.order is None:
                session.outbox.sort_anew()
            if core.journal is not None:
                core.journal.limited(session)

    def explain(self, client_id: str, why: Callable[[], str]) -> None:
        """Have reports say something of a client; see `LocalClients.explain`."""
        self._driver.core.why_away[client_id] = why

    def name_site(self, site: str) -> None:
        """Tell uplinks that connect to this broker to which site it belongs."""
        self._driver.core.site = site

    def keep_order(self, one: str, other: str) -> None:
        """Keep the order of topics across two clients; see `LocalClients.keep_order`."""
        core = self._driver.core
        first, second = (core.sessions.get(client_id) for client_id in (one, other))
        if first is not None and second is not None and first.outbox.order is None:
            lanes = lane_of(first, core.timers), lane_of(second, core.timers)
            self._driver.take_turn(lambda: join_lanes(*lanes))

    def take_over(self, client_id: str, *, is_away: bool) -> None:
        """Let the other client have what waits for one; see `LocalClients.take_over`."""
        session = self._driver.core.sessions.get(client_id)
        order = None if session is None else session.outbox.order
        if order is not None:
            self._driver.take_turn(lambda: order.take_over(is_away=is_away))

    def give_up_order(self, client_id: str) -> int:
        """Wait no more for what one is still to acknowledge; see `LocalClients.give_up_order`."""
        session = self._driver.core.sessions.get(client_id)
        order = None if session is None else session.outbox.order
        if session is None or order is None:
            return 0
        self._driver.take_turn(order.give_up)
        return len(session.inflight)

    def hand_over(self, client_id: str, packet_id: int | None = None) -> int:
        """Let the other client have what one was sent; see `LocalClients.hand_over`."""
        session = self._driver.core.sessions.get(client_id)
        order = None if session is None else session.outbox.order
        if session is None or order is None:
            return 0
        inflight = session.inflight
        unsure = [each for each in inflight if not inflight.is_released(each.packet_id)]

        def hand_over_all() -> None:
            order.give_back()
            for delivery in list(inflight):
                session.ledger.delivered += 1
                inflight.finish(delivery.packet_id, delivery.qos)

        if packet_id is None:
            self._driver.take_turn(hand_over_all)
            return len(unsure)
        for delivery in unsure:
            if delivery.packet_id == packet_id:
                self._driver.take_turn(partial(order.hand_over, delivery))
        return 0

    def drop_older(self, client_id: str, seconds: float) -> None:
        """Drop what has waited for a client for longer."""
        driver = self._driver
        session = driver.core.sessions.get(client_id)
        if session is not None:
            outbox = session.outbox
            now = driver.clock()
            driver.take_turn(lambda: outbox.drop_older(now - seconds, now))

    def note_clears(self, n_topics: int) -> None:
        """Keep in mind which topics are cleared; see `LocalClients.note_clears`."""
        self._driver.core.retained.most_removed = n_topics

    def retained_number(self, client_id: str) -> int | None:
        """Return the number of the last change of what is retained, if none of them waits."""
        core = self._driver.core
        session = core.sessions.get(client_id)
        if session is None or session.client is None:
            return None
        outgoing, outbox = session.client.outgoing, session.outbox
        is_sending = outgoing.out or outgoing.served.transport.get_write_buffer_size()
        if is_sending or outbox.n_messages or outbox.place.n_messages:
            return None
        return core.retained.number

    def cleared_retained(
        self, filters: Mapping[str, int], *, after: int, except_of: str
    ) -> dict[str, int]:
        """Return topics that have no retained message any more."""
        found: dict[str, int] = {}
        for topic, (number, publisher) in reversed(self._driver.core.retained.removed.items()):
            if number <= after:
                break
            if not publisher.startswith(except_of):
                matching = [qos for name, qos in filters.items() if matches(name, topic)]
                if matching:
                    found[topic] = max(matching)
        return found

    def lacking_retained(
        self, client_ids: Sequence[str], filters: Mapping[str, int], *, after: int, except_of: str
    ) -> dict[str, int]:
        """Return topics of retained messages that do not wait for some clients."""
        core, now = self._driver.core, self._driver.clock()
        waiting: set[int] = set()
        for session in filter(None, map(core.sessions.get, client_ids)):
            waiting.update(id(each.message) for each in session.outbox.waiting())
            waiting.update(id(each.message) for each in session.inflight)
        found: dict[str, int] = {}
        for topic_filter, qos in filters.items():
            walk = core.retained.walk(topic_filter)
            while not walk.is_done:
                message = walk.step(now)
                if (
                    message is not None
                    and walk.number > after
                    and id(message) not in waiting
                    and not message.publisher.startswith(except_of)
                ):
                    found[message.topic] = max(qos, found.get(message.topic, 0))
        return found

    def repeat_retained(
        self, client_id: str, topic: str, qos: int, sizes: SizeClass | None
    ) -> bool | None:
        """Send what is retained of a topic, or a clear; see `LocalClients.repeat_retained`."""
        driver = self._driver
        session = driver.core.sessions.get(client_id)
        if session is None or session.sender is None:
            return None
        if session.outbox.n_messages + len(session.inflight) >= MOST_REPEATED:
            return None
        now = driver.clock()
        message = driver.core.retained.by_topic.get(topic)
        if message is None:
            message = Message(topic, b"", qos=qos, retain=True, arrived_at=now)
        if not session.outbox.takes(sizes, message):
            return False
        given = driver.core.router.for_one(message)

        def deliver() -> None:
            most = min(qos, message.qos)
            session.deliver(given, most, retain=True, subscription_ids=(), now=now)

        driver.take_turn(deliver)
        return True

    def waiting(self, client_id: str) -> int:
        """Return how many messages wait for a client, or are unacknowledged by it."""
        session = self._driver.core.sessions.get(client_id)
        return 0 if session is None else session.outbox.n_messages + len(session.inflight)

    def backlog(self, client_id: str) -> tuple[int, int, float | None, float | None]:
        """Return what waits for a client; see `LocalClients.backlog`."""
        session = self._driver.core.sessions.get(client_id)
        if session is None or session.is_unused:
            return 0, 0, None, None
        outbox, link = session.outbox, session.link
        oldest_at = outbox.oldest_at()
        age = None if oldest_at is None else max(0.0, self._driver.clock() - oldest_at)
        n_messages = outbox.n_messages + len(session.inflight)
        return n_messages, outbox.n_bytes, age, link.rtt_latest

    def retained(self, topic_filter: str, publisher: str) -> Sequence[tuple[str, int]]:
        """Return what is retained of a client's; see `LocalClients.retained`."""
        walk = self._driver.core.retained.walk(topic_filter)
        now = self._driver.clock()
        found = []
        while not walk.is_done:
            message = walk.step(now)
            if message is not None and message.publisher == publisher:
                found.append((message.topic, message.payload_bytes))
        return found

    def set_retained(
        self, packet: bytes, version: int, *, publisher: str = "", age: float = 0.0
    ) -> bool:
        """Take over what another broker retains; see `LocalClients.set_retained`."""
        driver = self._driver
        core, now = driver.core, driver.clock()
        message = _retained_message(core, packet, version, publisher, now - age, now)
        return bool(driver.take_turn(lambda: message is not None and core.router.retain(message)))

    def walk_retained(self) -> Iterator[Message]:
        """Yield what is retained; see `LocalClients.walk_retained`."""
        retained, clock = self._driver.core.retained, self._driver.clock
        special = [f"{level}/#" for level in retained.special_levels() if level[:4] != "$SYS"]
        for topic_filter in ("#", *special):
            walk = retained.walk(topic_filter)
            while not walk.is_done:
                message = walk.step(clock())
                if message is not None:
                    yield message

    def show_retained(self, prefix: str, show: Callable[[Message, int], Iterator[Message]]) -> None:
        """Send new subscriptions other forms of what is retained.

        See `penstock.broker.extensions.LocalClients.show_retained`.
        """
        core = self._driver.core

        def shown(message: Message, number: int) -> Iterator[Message]:
            for form in show(message, number):
                threshold_s = core.threshold_s(form.topic)
                form.is_large = threshold_s is not None and form.payload_bytes > threshold_s
                yield form

        core.retained.show(prefix, shown)

    def subscriptions_of_others(self) -> Iterator[tuple[str, str, int]]:
        """Yield the (client id, topic filter, QoS) of all clients but these."""
        for session in self._driver.core.sessions:
            if not session.client_id.startswith(LOCAL_CLIENT_PREFIX):
                for one in session.subscriptions.values():
                    yield session.client_id, one.topic_filter, one.qos

    def all_subscriptions(self) -> Iterator[tuple[str, str]]:
        """Yield the (client id, topic filter) of all clients."""
        for session in self._driver.core.sessions:
            for topic_filter in session.subscriptions:
                yield session.client_id, topic_filter

    def release(self, client_id: str, reason_code: int, *, ends: bool = False) -> None:
        """Let go of a client that another broker has; see `LocalClients.release`."""
        driver = self._driver
        sessions, code = driver.core.sessions, ReasonCode(reason_code)
        driver.take_turn(lambda: sessions.release(client_id, code, driver.clock(), ends=ends))

    def drop(self, client_id: str, reason_code: int) -> None:
        """Forget a kept session; see `LocalClients.drop`."""
        driver = self._driver
        sessions, code = driver.core.sessions, ReasonCode(reason_code)
        driver.take_turn(lambda: sessions.drop(client_id, code, driver.clock()))

    def take_rows(self, n_rows: int) -> int:
        """Return the first of numbers for rows; see `LocalClients.take_rows`."""
        return cast("Journal", self._driver.core.journal).take_rows(n_rows)

    async def deliver(self, client_id: str, mail: Sequence[Mail]) -> Sequence[DeliveryRow | None]:
        """Give a kept session what waits for it; see `LocalClients.deliver`."""
        driver = self._driver
        core, kept = driver.core, driver.core.kept
        session = core.sessions.get(client_id)
        client = None if session is None else session.client
        if session is None or client is None or kept is None or not kept.has(session):
            return ()
        refused: set[int] = set()
        if core.router.asks_receivers:
            for each in mail:
                if not await core.router.is_allowed(session, each.message.topic, RECEIVE):
                    refused.add(each.message.row)
            if session.client is not client:
                return ()
        deliver = cast("KeptSessions", kept).deliver
        now = driver.clock()
        return driver.take_turn(lambda: deliver(session, mail, now, refused=refused)) or ()

    def deliver_run(self, client_id: str, run: MailRun) -> int | None:
        """Give a kept session messages that go together; see `LocalClients.deliver_run`."""
        driver = self._driver
        session = driver.core.sessions.get(client_id)
        if session is None:
            return None
        take, now = driver.core.take_mail_run, driver.clock()
        return driver.take_turn(lambda: take(session, run, now))

    def end_sessions(self, is_wanted: Callable[[str], bool]) -> Sequence[str]:
        """End sessions of local clients, and return their ids."""
        driver = self._driver
        sessions = driver.core.sessions
        ended = [
            client_id
            for client_id in sessions.client_ids()
            if client_id.startswith(LOCAL_CLIENT_PREFIX) and is_wanted(client_id)
        ]

        def end() -> None:
            now = driver.clock()
            for client_id in ended:
                session = sessions.get(client_id)
                if session is not None:
                    sessions.end(session, now)

        driver.take_turn(end)
        return ended


def _retained_message(
    core: Core, packet: bytes, version: int, publisher: str, published_at: float, now: float
) -> Message | None:
    """Return the message of a PUBLISH packet that another broker retains.

    Returns:
        None where the payload store cannot keep it: the topic has no retained message then.

    Raises:
        PenstockError: the packet is not correct.
    """
    start, length = read_remaining_length(packet, 0)
    if not start or start + length != len(packet) or packet[0] >> 4 != PacketType.PUBLISH:
        raise PenstockError("retained message: allowed: one whole PUBLISH packet")
    publish = read_publish(packet[0], packet[start:], version, sys.maxsize)
    if "topic_alias" in publish.properties:
        raise PenstockError("retained message: Topic Alias; allowed: a Topic Name")
    threshold_s = core.threshold_s(publish.topic)
    payload = core.guard.call(core.payload_store, core.keep, publish.payload, otherwise=None)
    if payload is None:
        core.retained.remove(publish.topic, by=publisher)
        return None
    return Message(
        publish.topic,
        payload,
        qos=publish.qos,
        retain=True,
        arrived_at=now,
        is_large=threshold_s is not None and len(payload) > threshold_s,
        expires_at=expiry_time(publish.properties, published_at),
        properties=publish.properties,
        publisher=publisher,
    )
