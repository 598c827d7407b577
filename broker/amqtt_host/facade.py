"""aMQTT's `BrokerContext` gets this facade in place of aMQTT's broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from amqtt.broker import RetainedApplicationMessage
from amqtt.session import Session as AmqttSession

from penstock.broker.access_control import SUBSCRIBE
from penstock.broker.amqtt_host.packets import retained_view
from penstock.broker.amqtt_host.sessions import HostedSession
from penstock.broker.errors import PeerError
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import QoS
from penstock.broker.mqtt.topics import parse_share, validate_topic, validate_topic_filter
from penstock.broker.receiving.subscribing import add_subscription
from penstock.broker.routing.topic_tree import Subscription

if TYPE_CHECKING:
    from penstock.broker.amqtt_host.host import AmqttHost

_REFUSED: Final = 0x80
"""aMQTT's return code for a refused subscription."""


class HostedBroker:
    """The part of aMQTT's broker that its context and its plugins use."""

    def __init__(self, host: AmqttHost) -> None:
        self._host = host

    @property
    def config(self) -> Any:
        """The `BrokerConfig` of aMQTT."""
        return self._host.manager.context.config

    @property
    def plugins_manager(self) -> Any:
        """The `PluginManager` of aMQTT."""
        return self._host.manager

    @property
    def sessions(self) -> SessionTable:
        """All sessions, connected or not, by Client Identifier."""
        return SessionTable(self._host)

    _sessions = sessions

    @property
    def retained_messages(self) -> RetainedTable:
        """All retained messages by Topic Name."""
        return RetainedTable(self._host)

    @property
    def subscriptions(self) -> dict[str, list[tuple[AmqttSession, int]]]:
        """All present subscriptions by topic filter."""
        table: dict[str, list[tuple[AmqttSession, int]]] = {}
        for session in self._host.core.sessions:
            hosted = self._host.hosted(session)
            for topic_filter, subscription in session.subscriptions.items():
                table.setdefault(topic_filter, []).append((hosted, subscription.qos))
        return table

    async def internal_message_broadcast(
        self, topic: str, data: bytes, qos: int | None = None
    ) -> None:
        """Publish a message of the broker's own.

        Args:
            topic: Topic Name.
            data: payload.
            qos: maximum QoS of its deliveries; None for what each subscription was granted.

        Raises:
            ValueError: the Topic Name is not valid.
            OSError: the payload cannot be stored.
        """
        host = self._host
        now = host.clock()
        host.core.router.publish(self._message(topic, data, qos, now, retain=False), now)

    async def retain_message(
        self,
        source_session: AmqttSession | None,
        topic_name: str,
        data: bytes | bytearray | None,
        qos: int | None = None,
    ) -> None:
        """Retain a message for later subscribers; empty data removes the topic's.

        Raises:
            ValueError: the Topic Name is not valid.
            OSError: the payload cannot be stored.
        """
        publisher = source_session.client_id if source_session is not None else None
        message = self._message(
            topic_name, data or b"", qos, self._host.clock(), retain=True, publisher=publisher or ""
        )
        router = self._host.core.router
        router.retain(message)
        router.offer_retained(message)

    def _message(
        self,
        topic: str,
        data: bytes | bytearray,
        qos: int | None,
        now: float,
        *,
        retain: bool,
        publisher: str = "",
    ) -> Message:
        _check(validate_topic, topic)
        core = self._host.core
        plan = core.tree.plan(topic, topic.encode())
        return Message(
            topic,
            core.keep(bytes(data)),
            qos=QoS.EXACTLY_ONCE if qos is None else qos,
            retain=retain,
            arrived_at=core.arrived_at(now, plan.sinks),
            is_large=len(data) > plan.threshold_s,
            publisher=publisher,
            topic_bytes=plan.topic_bytes,
        )

    def create_offline_session(self, client_id: str) -> tuple[None, HostedSession]:
        """Make a session for a client that is not connected; it never expires."""
        session = self._host.core.sessions.create(client_id)
        session.expiry_interval = None
        if self._host.core.journal is not None:
            self._host.core.journal.keep(session)
        hosted = self._host.hosted(session)
        hosted.clean_session = False
        hosted.transitions.disconnect()
        return None, hosted

    async def add_subscription(self, subscription: tuple[str, int], session: AmqttSession) -> int:
        """Subscribe a session, if its plugins allow it; return the QoS or 0x80.

        Raises:
            ValueError: the Topic Filter is not valid.
        """
        topic_filter, qos = subscription
        _check(validate_topic_filter, topic_filter)
        core = self._host.core
        own = core.sessions.get(session.client_id or "")
        if own is None:
            return _REFUSED
        if self._host.checks_subscribe:
            asked = parse_share(topic_filter).topic_filter
            answer = self._host.authorize(own, asked, SUBSCRIBE)
            if not (await answer if isinstance(answer, Awaitable) else answer):
                return _REFUSED
        add_subscription(core, own, Subscription(own, topic_filter, qos))
        return qos


def _check(validate: Callable[[str], object], text: str) -> None:
    """Validate a name that comes from a plugin, and raise ValueError in place of a peer's error."""
    try:
        validate(text)
    except PeerError as error:
        raise ValueError(str(error)) from error


class SessionTable(Mapping[str, tuple[HostedSession, None]]):
    """aMQTT's table of sessions; the second element, its protocol handler there, is None."""

    def __init__(self, host: AmqttHost) -> None:
        self._host = host

    def __getitem__(self, client_id: str) -> tuple[HostedSession, None]:
        session = self._host.core.sessions.get(client_id)
        if session is None:
            raise KeyError(client_id)
        return self._host.hosted(session), None

    def __setitem__(self, client_id: str, entry: tuple[HostedSession, None]) -> None:
        """Ignore what aMQTT's context stores after `create_offline_session`: it is in the table."""

    def __iter__(self) -> Iterator[str]:
        return iter([session.client_id for session in self._host.core.sessions])

    def __len__(self) -> int:
        return len(self._host.core.sessions)


class RetainedTable(MutableMapping[str, RetainedApplicationMessage]):
    """aMQTT's table of retained messages, a view of the broker's own."""

    def __init__(self, host: AmqttHost) -> None:
        self._host = host

    def __getitem__(self, topic: str) -> RetainedApplicationMessage:
        message = self._host.core.retained.by_topic[topic]
        return retained_view(message, self._host.hosted_publisher(message))

    def __setitem__(self, topic: str, retained: RetainedApplicationMessage) -> None:
        _check(validate_topic, topic)
        core = self._host.core
        payload = core.keep(bytes(retained.data))
        qos = QoS.EXACTLY_ONCE if retained.qos is None else retained.qos
        core.retained.set(Message(topic, payload, qos=qos, retain=True))

    def __delitem__(self, topic: str) -> None:
        if topic not in self._host.core.retained.by_topic:
            raise KeyError(topic)
        self._host.core.retained.remove(topic)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._host.core.retained.by_topic))

    def __len__(self) -> int:
        return len(self._host.core.retained)
