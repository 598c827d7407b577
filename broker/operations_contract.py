"""What operators see of a running program, and what they change: the types of `Operations`.

Fields have the names that the HTTP API of the plugin `console` shows, and times are in seconds; an
age counts from the answer. None stands for what is not known, or what the program does not have.
"""

# ruff: noqa: ARG002 (what a program lacks is answered without looking at the arguments)

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from penstock.broker.client_report import ClientReport
from penstock.broker.counters import Metric
from penstock.broker.message import SizeClass

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

BanKind: TypeAlias = Literal["client_id", "username", "address"]

LONGEST_BAN_SECONDS: Final = 366 * 86_400
"""A ban ends with the program anyway; for ever is a matter of access control."""


class ClientRow(NamedTuple):
    """One client in a list of many.

    Attributes:
        client_id: Client Identifier.
        username: of its newest connection, or None.
        address: of the peer; "" while the client is away.
        listener: of its newest connection; "" before the first.
        version: of its newest connection: ``3.1``, ``3.1.1`` or ``5.0``.
        is_connected: whether it has a network connection.
        connected_seconds: since its CONNECT; None while it is away.
        rtt: newest RTT estimate, seconds; None where no recent one exists, and while it is away.
        withheld: messages that the gate holds, and those behind them.
        withheld_total: large messages that were held since its session began.
        queued: messages that wait for other reasons.
        queued_bytes: payload bytes of both.
        inflight: messages that were sent and are not acknowledged.
        delivered: messages since its session began.
        dropped: the same, whatever the reason.
        delivered_per_second: for whoever looks at all rows again and again to fill in; else None.
        node: for who knows several programs that are one to fill in: which one has it; "" for none.
    """

    client_id: str
    username: str | None
    address: str
    listener: str
    version: str
    is_connected: bool
    connected_seconds: float | None
    rtt: float | None
    withheld: int
    withheld_total: int
    queued: int
    queued_bytes: int
    inflight: int
    delivered: int
    dropped: int
    delivered_per_second: float | None = None
    node: str = ""


class Lately(NamedTuple):
    """What happened to a client's connection.

    Attributes:
        seconds_ago: how long ago it happened.
        kind: ``connected``, ``taken_over`` (by another connection with the same Client Identifier),
            ``disconnected`` or ``session_ended``.
        address: ``ADDRESS:PORT`` of the peer; "" of the end of a session.
        reason: why the connection ended, in words; "" where nothing is known.
    """

    seconds_ago: float
    kind: Literal["connected", "taken_over", "disconnected", "session_ended"]
    address: str
    reason: str


class Ban(NamedTuple):
    """Who may not connect for a while.

    Attributes:
        kind: what `value` is.
        value: Client Identifier, user name or address; an address of IPv6 stands for its network of
            64 bits.
        seconds: until it ends.
        reason: of whoever has made it, for the log.
        by: the same one's name.
    """

    kind: BanKind
    value: str
    seconds: float
    reason: str
    by: str


class TopicRow(NamedTuple):
    """What waits of one topic, in all outboxes together.

    Attributes:
        topic: Topic Name.
        size: the size class of the messages.
        messages: waiting messages, once for each subscriber.
        bytes: payload bytes of these.
        oldest_seconds: the age of the oldest one, since its arrival.
        node: as of `ClientRow`.
    """

    topic: str
    size: SizeClass
    messages: int
    bytes: int
    oldest_seconds: float
    node: str = ""


class SubscriptionRow(NamedTuple):
    """One subscription.

    Attributes:
        client_id: Client Identifier of the subscriber.
        topic_filter: Topic Filter, without ``$share/NAME/``.
        qos: granted.
        share_name: of a shared subscription; "" of another one.
        sizes: the size class that it takes; None for both.
    """

    client_id: str
    topic_filter: str
    qos: int
    share_name: str
    sizes: SizeClass | None


class RetainedRow(NamedTuple):
    """One retained message, without its payload.

    Attributes:
        topic: Topic Name.
        bytes: of the payload.
        qos: of the PUBLISH.
        publisher: Client Identifier of the publisher; "" for the broker.
        age_seconds: since its arrival, or since the start of the broker where it was there before.
        expires_seconds: until it expires; None where it does not.
    """

    topic: str
    bytes: int
    qos: int
    publisher: str
    age_seconds: float
    expires_seconds: float | None


class RetainedContent(NamedTuple):
    """One retained message.

    Attributes:
        row: the message.
        payload: its payload.
        properties: of its PUBLISH, by their names; those of MQTT 5 clients alone have any.
    """

    row: RetainedRow
    payload: bytes
    properties: Mapping[str, Any]


class TailRecord(NamedTuple):
    """One event of the live tail; there is never a payload in it.

    Attributes:
        at: Unix time.
        kind: what happened.
        client_id: of the publisher of a ``publish``, of the subscriber else; its first 256
            characters, as of `topic`.
        address: of the client's connection; "" while it is away.
        topic: Topic Name; "" where none belongs to it.
        bytes: of the payload.
        qos: of the PUBLISH.
        reason: why, in words; "" where there is none.
    """

    at: float
    kind: Literal["connect", "disconnect", "publish", "deliver", "held", "released", "dropped"]
    client_id: str
    address: str
    topic: str
    bytes: int
    qos: int
    reason: str


class Tail(Protocol):
    """An open tail: an asynchronous iterator of records, which ends when the program stops.

    Attributes:
        n_lost: records that were lost since the start, as the reader was too slow.
    """

    n_lost: int

    def __aiter__(self) -> AsyncIterator[TailRecord]: ...

    def close(self) -> None:
        """Watch nothing more, and end the iterator; further calls do nothing."""


class LaneState(NamedTuple):
    """One connection of an uplink.

    Attributes:
        name: ``small`` or ``large`` of two lanes; "" of the only one.
        is_connected: whether it is connected.
        since_seconds: since it connected or was disconnected, or since the start.
        address: of the cloud's broker.
        why: why it is not connected, and when it tries again; "" where it is.
        waiting: messages that wait for it or are unacknowledged by the cloud.
        waiting_bytes: payload bytes of those that wait.
        oldest_seconds: the age of the oldest one that waits; None where none does.
        rtt: RTT to the cloud; None where it is not known.
    """

    name: str
    is_connected: bool
    since_seconds: float
    address: str
    why: str
    waiting: int
    waiting_bytes: int
    oldest_seconds: float | None
    rtt: float | None


class UplinkState(NamedTuple):
    """One uplink.

    Attributes:
        name: in the policy file.
        is_connected: whether all of its lanes are.
        lanes: its connections.
    """

    name: str
    is_connected: bool
    lanes: Sequence[LaneState]


class Reloaded(NamedTuple):
    """What a reload of all files has done.

    Attributes:
        read: what was read again, each behind its key.
        changed: keys of the policy file that have other values now.
        needs_restart: keys whose new values count from the next start on.
        failed: key to why it cannot be used. Nothing has changed then, but where `changed` has
            something: that could be seen only when all else had changed.
    """

    read: Sequence[str] = ()
    changed: Sequence[str] = ()
    needs_restart: Sequence[str] = ()
    failed: Mapping[str, str] = MappingProxyType({})


class Operations(Protocol):
    """What an operator may see and do, on the loop's thread.

    A proxy has a part of it, and inherits the answers of what it does not have.

    There may be very many clients: what looks at all of them is asynchronous and lets other tasks
    run in between. Let them run when you ask about each of them yourself.
    """

    # -- what is seen -------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep what `lately` and the lag of the event loop need; call it in the constructor.

        Without a call, nothing of it is kept.
        """
        return

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session, in no promised order."""

    def row(self, client_id: str) -> ClientRow | None:
        """Return what a list shows of a client; None where it has no session. It is cheap."""

    def report(self, client_id: str) -> ClientReport | None:
        """Return what can be said of a client now; None where it is not known.

        Of the last clients that have gone, it is what was known when their sessions ended.
        """

    def lately(self, client_id: str) -> Sequence[Lately]:
        """Return what happened to a client's last connections, newest first."""
        return ()

    def proxy(self) -> Mapping[str, Any] | None:
        """Return the state of a proxy as JSON has it; None in a broker."""

    async def metrics(self) -> Sequence[Metric]:
        """Return all figures of the program, plugins included, made from what is counted anyway.

        Names are without ``penstock_``.
        """

    async def problems(self) -> Mapping[str, str]:
        """Return what keeps the program from serving: name to the reason; empty where it serves."""

    async def topics(self) -> Sequence[TopicRow]:
        """Return what waits by topic and size class, in no promised order."""

    async def subscriptions(self, client_id: str | None = None) -> Sequence[SubscriptionRow]:
        """Return the subscriptions of a client, or of all; in no promised order."""
        return ()

    async def retained(self, topic_filter: str = "#") -> Sequence[RetainedRow]:
        """Return the retained messages that match a filter, in no promised order.

        Raises:
            PenstockError: it is no valid topic filter.
        """
        return ()

    def retained_message(self, topic: str) -> RetainedContent | None:
        """Return the retained message of a topic; None where it has none."""
        return None

    def uplinks(self) -> Sequence[UplinkState]:
        """Return the state of all uplinks."""
        return ()

    def tail(
        self,
        *,
        topic_filter: str | None = None,
        client_id: str | None = None,
        address: str | None = None,
    ) -> Tail | None:
        """Open a live tail of what happens from now on; `Tail.close` ends it.

        While none is open it costs nothing. While one is, all messages take the plain way through
        the broker, so that each can be looked at.

        Args:
            topic_filter: tells of topics that match it alone, and of connections.
            client_id: tells of this client alone.
            address: tells of clients of this address alone.

        Returns:
            None where the program has no tail.

        Raises:
            PenstockError: the topic filter is not valid, or too many are open.
        """
        return None

    # -- what is done -------------------------------------------------------------------------

    def disconnect(self, client_id: str, reason: str) -> bool:
        """Disconnect a client (MQTT 5: 0x98 with the reason); return whether it was connected.

        Raises:
            PenstockError: it is one of the program's own, such as an uplink's.
        """

    async def ban(
        self, kind: BanKind, value: str, seconds: float, reason: str, by: str = ""
    ) -> int:
        """Let nobody of this name or address connect for a while, and disconnect who is there.

        It replaces an earlier ban. It outlives a reload, and ends with the program. MQTT 5 clients
        are refused with 0x8A; the reason is for operators.

        Returns:
            The number of clients that were disconnected.

        Raises:
            PenstockError: the value is none of its kind, or there are too many bans.
        """

    def bans(self) -> Sequence[Ban]:
        """Return all bans that have not ended."""

    def unban(self, kind: BanKind, value: str) -> bool:
        """End a ban; return whether there was one."""

    def end_session(self, client_id: str) -> bool:
        """Disconnect a client and end its session, with all that waits; False for no session.

        Raises:
            PenstockError: it is one of the program's own, or sessions are not the program's.
        """

    def release_held(self, client_id: str) -> int:
        """Let what the gate holds for a client leave now, one after the other; return how many."""

    def drop_held(self, client_id: str) -> int:
        """Drop what the gate holds for a client, as ``operator``; return how many."""

    def clear_retained(self, topic: str) -> bool:
        """Clear the retained message of a topic, as a client would; return whether there was one.

        Subscribers are sent its clear: an empty message.
        """
        return False

    @property
    def is_draining(self) -> bool:
        """Whether no new clients are accepted, and those that are there are being disconnected."""

    def drain(self, seconds: float) -> None:
        """Accept no new clients, and disconnect those that are there, spread over some seconds.

        MQTT 5 clients are told where else to go, where the policy file says so (0x9C), or that the
        server shuts down (0x8B). The program goes on until it is stopped.
        """

    @property
    def log_level(self) -> str:
        """``debug``, ``info``, ``warning`` or ``error``."""

    def set_log_level(self, level: str) -> None:
        """Set the level of the program's log.

        Raises:
            PenstockError: there is no such level.
        """

    async def backup(self, path: str) -> int:
        """Write what is durable to a new directory, while all goes on.

        Args:
            path: of the directory, which must not exist; on the program's machine.

        Returns:
            Bytes written.

        Raises:
            PenstockError: nothing is durable, or it cannot be written.
        """

    async def reload(self) -> Reloaded:
        """Read all files again, as at SIGHUP."""
