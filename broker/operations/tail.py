"""The live tail: what happens to clients and messages, told while somebody listens.

Theory of operation. Nothing of it is in the way of a message while no tail is open. The first one
adds callbacks to the core's (`CoreContext.tell`): of clients that come and go, of each routed
message and of each packet sent. With callbacks that look at messages, no fast path is taken, as
with those of a plugin, and so each message is seen. Holds and releases are told by the record that
counts them (`WithholdingRecord.watch`). What is dropped while a message is routed is found by
comparing the ledgers of its subscribers before and after. The last tail takes all of it away.

A tail has a bounded queue. A reader that is too slow misses records, and is told how many.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.events import (
    Callbacks,
    ClientConnected,
    ClientDisconnected,
    MessageRouted,
    PacketSent,
)
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.topics import matches, validate_topic_filter
from penstock.broker.operations.history import why_ended
from penstock.broker.operations_contract import TailRecord

if TYPE_CHECKING:
    from penstock.broker.access_control import SessionView
    from penstock.broker.extensions import Decision
    from penstock.broker.link import Link
    from penstock.broker.message import Message
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Target
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

MOST_TAILS: Final = 16
"""Each costs every message a comparison or two."""

MOST_RECORDS: Final = 1_000
"""So many records wait for a reader; those after them are lost."""

MOST_CHARACTERS: Final = 256
"""Of a name or a topic in a record: clients make them up, and one may have 65,535 bytes."""

_PUBLISH: Final = 3


class OpenTail:
    """One reader; a `penstock.broker.operations_contract.Tail`."""

    def __init__(
        self,
        topic_filter: str | None,
        client_id: str | None,
        address: str | None,
        on_close: Callable[[OpenTail], None],
    ) -> None:
        self.n_lost = 0
        self._topic_filter = topic_filter
        self._client_id = client_id
        self._address = address
        self._on_close = on_close
        self._records: deque[TailRecord] = deque()
        self._news = asyncio.Event()
        self._is_closed = False

    def wants(self, client_id: str, address: str, topic: str) -> bool:
        """Say whether a record is for this reader."""
        return (
            (self._client_id is None or client_id == self._client_id)
            and (self._address is None or address == self._address)
            and (self._topic_filter is None or (bool(topic) and matches(self._topic_filter, topic)))
        )

    def put(self, record: TailRecord) -> None:
        """Let a record wait for the reader, or count it as lost."""
        if len(self._records) >= MOST_RECORDS:
            self.n_lost += 1
            return
        self._records.append(record)
        self._news.set()

    def close(self) -> None:
        """Watch nothing more, and end the iterator."""
        if not self._is_closed:
            self._is_closed = True
            self._news.set()
            self._on_close(self)

    def __aiter__(self) -> AsyncIterator[TailRecord]:
        return self

    async def __anext__(self) -> TailRecord:
        """Return the next record; end when the tail is closed and all was read."""
        while not self._records:
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._records.popleft()


class Tails:
    """All open tails of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tails: list[OpenTail] = []
        self._before: Callbacks
        self._route: Callable[..., None]
        self._publish: Callable[..., None]

    def open(
        self, topic_filter: str | None, client_id: str | None, address: str | None
    ) -> OpenTail:
        """Open a tail; see `penstock.broker.operations_contract.Operations.tail`.

        Raises:
            PenstockError: the topic filter is not valid, or too many are open.
        """
        if topic_filter is not None:
            try:
                validate_topic_filter(topic_filter)
            except PeerError as error:
                raise PenstockError(f"tail: {error.args[0]}") from error
        if len(self._tails) >= MOST_TAILS:
            raise PenstockError(f"tail: {MOST_TAILS} are open; allowed: no more at a time")
        tail = OpenTail(topic_filter, client_id, address, self._closed)
        self._tails.append(tail)
        if len(self._tails) == 1:
            self._begin()
        return tail

    def close(self) -> None:
        """Close all."""
        for tail in list(self._tails):
            tail.close()

    def _closed(self, tail: OpenTail) -> None:
        self._tails.remove(tail)
        if not self._tails:
            self._end()

    def _begin(self) -> None:
        core = self._core
        self._before = core.callbacks
        mine = Callbacks(
            client_connected=(self._connected,),
            client_disconnected=(self._disconnected,),
            message_routed=(self._routed,),
            packet_sent=(self._sent,),
        )
        core.tell(Callbacks.joined([core.callbacks, mine]))
        core.outbox_rules.record.watch = self._decided
        self._route, self._publish = core.router.route, core.router.publish
        core.router.route = self._route_watched  # type: ignore[method-assign]
        core.router.publish = self._publish_watched  # type: ignore[method-assign]

    def _end(self) -> None:
        core = self._core
        core.tell(self._before)
        core.outbox_rules.record.watch = None
        del core.router.route, core.router.publish  # what stood before the class's own

    # -- what happens -------------------------------------------------------------------------

    def _tell(
        self,
        kind: Any,
        client_id: str,
        address: str,
        topic: str = "",
        n_bytes: int = 0,
        qos: int = 0,
        reason: str = "",
    ) -> None:
        record = None
        for tail in self._tails:
            if tail.wants(client_id, address, topic):
                record = record or TailRecord(
                    time.time(),
                    kind,
                    client_id[:MOST_CHARACTERS],
                    address,
                    topic[:MOST_CHARACTERS],
                    n_bytes,
                    qos,
                    reason,
                )
                tail.put(record)

    def _address(self, session: Any) -> str:
        client = cast("Session", session).client
        return "" if client is None else client.remote_address

    def _connected(self, event: ClientConnected) -> None:
        session = event.session
        self._tell("connect", session.client_id, self._address(session))

    def _disconnected(self, event: ClientDisconnected) -> None:
        address = event.peer.rpartition(":")[0]
        reason = why_ended(event.reason_code)
        self._tell("disconnect", event.session.client_id, address, reason=reason)

    def _routed(self, event: MessageRouted) -> None:
        session, message = event.session, event.message
        self._tell(
            "publish",
            session.client_id,
            self._address(session),
            message.topic,
            message.payload_bytes,
            message.qos,
        )

    def _sent(self, event: PacketSent) -> None:
        if event.first_byte >> 4 != _PUBLISH or event.session is None:
            return
        session = cast("Session", event.session)
        header, payload = event.chunks
        self._tell(
            "deliver",
            session.client_id,
            self._address(session),
            _topic_of(bytes(header), session),
            len(payload),
            event.first_byte >> 1 & 3,
        )

    def _decided(self, link: Link, what: Any, decision: Decision) -> None:
        session = self._core.sessions.get(link.client_id)
        self._tell(
            what,
            link.client_id,
            "" if session is None else self._address(session),
            decision.topic,
            decision.payload_bytes,
            reason=decision.verdict.reason,
        )

    def _publish_watched(
        self, message: Message, now: float, session: SessionView | None = None
    ) -> None:
        """Publish a message as `Router.publish` does, and tell of a will."""
        if session is not None:
            address, n_bytes = self._address(session), message.payload_bytes
            self._tell(
                "publish", session.client_id, address, message.topic, n_bytes, message.qos, "will"
            )
        self._publish(message, now, session)

    def _route_watched(
        self,
        message: Message,
        targets: Sequence[Target],
        chosen: Sequence[tuple[SharedSubscription, Target]],
        now: float,
    ) -> None:
        """Route a message as `Router.route` does, and tell what was dropped."""
        sessions = [cast("Session", target.session) for target in targets]
        sessions += [cast("Session", member.session) for _, member in chosen]
        before = [dict(session.ledger.dropped) for session in sessions]
        self._route(message, targets, chosen, now)
        for session, then in zip(sessions, before, strict=True):
            if session.ledger.dropped == then:
                continue
            for reason, n_dropped in session.ledger.dropped.items():
                if n_dropped != then.get(reason, 0):
                    self._tell(
                        "dropped",
                        session.client_id,
                        self._address(session),
                        message.topic,
                        message.payload_bytes,
                        message.qos,
                        reason,
                    )


def _topic_of(header: bytes, session: Session) -> str:
    """Return the topic of a PUBLISH to a client, by all that stands before the payload."""
    start = 1
    while header[start] & 0x80:
        start += 1
    start += 1
    topic_end, _, properties_at, _ = read_publish_head(
        header, header[0], start, len(header), session.version
    )
    topic_bytes = header[start + 2 : topic_end]
    aliases = None if session.sender is None else session.sender.aliases
    if not topic_bytes and aliases is not None:
        properties, _ = read_publish_properties(header, properties_at)
        topic_bytes = aliases.topic_of(properties["topic_alias"])
    return topic_bytes.decode()
