"""The events that the broker tells plugins of: one frozen class each, in the past tense.

A tuple of callbacks that is empty costs one test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from penstock.broker.access_control import SessionView
from penstock.broker.message import Message


class ClientConnected(NamedTuple):
    """A client was authenticated and its CONNACK sent."""

    session: SessionView


class ClientDisconnected(NamedTuple):
    """A client's network connection has ended.

    Attributes:
        session: of the client.
        peer: ``ADDRESS:PORT`` of the connection.
        reason_code: for which it was closed; 0 where the client has disconnected; None where the
            connection was lost.
    """

    session: SessionView
    peer: str = ""
    reason_code: int | None = None


class SessionEnded(NamedTuple):
    """A session has ended: nothing is kept of this client any more.

    Attributes:
        session: of the client.
        topic_filters: those of its subscriptions, of which no `ClientUnsubscribed` is told.
    """

    session: SessionView
    topic_filters: Sequence[str] = ()


class ClientSubscribed(NamedTuple):
    """A topic filter was granted.

    Attributes:
        session: of the client.
        topic_filter: as it was granted.
        qos: the maximum QoS.
        is_new: the session had no subscription to this filter.
    """

    session: SessionView
    topic_filter: str
    qos: int
    is_new: bool = True


class ClientUnsubscribed(NamedTuple):
    """A topic filter was given up."""

    session: SessionView
    topic_filter: str


class MessageReceived(NamedTuple):
    """A PUBLISH has come in, before it was authorized."""

    session: SessionView
    message: Message


class MessageRouted(NamedTuple):
    """A PUBLISH was authorized and is given to its targets."""

    session: SessionView
    message: Message


class MessageRetained(NamedTuple):
    """A retained message was set; an empty payload means that it was cleared."""

    message: Message


class PacketReceived(NamedTuple):
    """One whole packet came from a client.

    Attributes:
        session: None before CONNECT was accepted.
        first_byte: packet type and flags.
        size_bytes: length of the whole packet.
        chunks: buffers that, joined, are the packet; valid only during the call.
    """

    session: SessionView | None
    first_byte: int
    size_bytes: int
    chunks: tuple[bytes | memoryview, ...]


class PacketSent(NamedTuple):
    """One whole packet was handed to a client's connection; fields as `PacketReceived`."""

    session: SessionView | None
    first_byte: int
    size_bytes: int
    chunks: tuple[bytes | memoryview, ...]


@dataclass(slots=True)
class Callbacks:
    """The callbacks of each event: plain functions of one event, called on the loop's thread.

    One that raises is logged with its name and counted. With a callback of a message's or packet's
    arrival or departure, every message goes the long way: see `Core.is_plain`.

    Those of plugins are fixed before the first client connects. A live tail comes and goes
    (`penstock.broker.sending.core_context.CoreContext.tell`).
    """

    client_connected: tuple[Callable[[ClientConnected], None], ...] = ()
    client_disconnected: tuple[Callable[[ClientDisconnected], None], ...] = ()
    session_ended: tuple[Callable[[SessionEnded], None], ...] = ()
    client_subscribed: tuple[Callable[[ClientSubscribed], None], ...] = ()
    client_unsubscribed: tuple[Callable[[ClientUnsubscribed], None], ...] = ()
    message_received: tuple[Callable[[MessageReceived], None], ...] = ()
    message_routed: tuple[Callable[[MessageRouted], None], ...] = ()
    message_retained: tuple[Callable[[MessageRetained], None], ...] = ()
    packet_received: tuple[Callable[[PacketReceived], None], ...] = ()
    packet_sent: tuple[Callable[[PacketSent], None], ...] = ()

    @classmethod
    def joined(cls, several: Iterable[Callbacks]) -> Callbacks:
        """Return the callbacks of several, to be called in their order."""
        several = list(several)
        return cls(
            *(
                tuple(callback for one in several for callback in getattr(one, field.name))
                for field in fields(cls)
            )
        )
