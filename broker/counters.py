"""What one broker has done since it started; counters only go up."""

from __future__ import annotations


class Counters:
    """Counts of one broker, all from 0.

    Attributes:
        bytes_received: of whole packets.
        bytes_sent: handed to connections.
        packets_received: of every type.
        packets_sent: of every type.
        publish_received: PUBLISH packets from clients.
        publish_sent: PUBLISH packets to clients, repeats included.
        publish_refused: publishes that were not routed, by reason.
        publishers_slowed: times the broker stopped reading from a client over its publish rate.
        retained_discarded: messages that were routed but not retained, as there was no room.
        broken_off: times a connection was closed in the middle of a large message.
        subscribe_refused: requested subscriptions that were not made, by reason.
        connections_total: network connections accepted.
        connections_refused: network connections that were refused or failed, by reason: the limit
            that was exceeded (`all`, `listener`, `address`; of sessions: `sessions`,
            `user_sessions`, `address_sessions`; `wills`), `cut_off` for those of them that got no
            answer, or what went wrong (`tls`, `websocket`, `proxy_header`, `timeout`).
        clients_connected: clients connected now.
        logins_failed: CONNECT packets and exchanges with a wrong user or password.
        logins_not_judged: logins refused unchecked after too many failures; see
            `penstock.broker.quotas.login_backoff`.
        revoked: clients disconnected after a reload that withdrew their access.
        peer_errors: connections closed for what the peer sent, by reason code.
        unexpected_acknowledgements: acknowledgements of packet identifiers not inflight.
        user_properties_ignored: CONNECT packets with a user property for the gate whose value it
            could not use.
        extension_events_dropped: events that a plugin was too slow to take, by the name of its
            callback.
        extension_errors: exceptions raised by plugins, by the name of the plugin.
        faults: exceptions in parts of the broker that do not stop the others, by the part's name.
    """

    __slots__ = (
        "broken_off",
        "bytes_received",
        "bytes_sent",
        "clients_connected",
        "connections_refused",
        "connections_total",
        "extension_errors",
        "extension_events_dropped",
        "faults",
        "logins_failed",
        "logins_not_judged",
        "packets_received",
        "packets_sent",
        "peer_errors",
        "publish_received",
        "publish_refused",
        "publish_sent",
        "publishers_slowed",
        "retained_discarded",
        "revoked",
        "subscribe_refused",
        "unexpected_acknowledgements",
        "user_properties_ignored",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0
        self.packets_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.publish_refused: dict[str, int] = {}
        self.publishers_slowed = 0
        self.retained_discarded = 0
        self.broken_off = 0
        self.subscribe_refused: dict[str, int] = {}
        self.connections_total = 0
        self.connections_refused: dict[str, int] = {}
        self.clients_connected = 0
        self.logins_failed = 0
        self.logins_not_judged = 0
        self.revoked = 0
        self.peer_errors: dict[int, int] = {}
        self.unexpected_acknowledgements = 0
        self.user_properties_ignored = 0
        self.extension_events_dropped: dict[str, int] = {}
        self.extension_errors: dict[str, int] = {}
        self.faults: dict[str, int] = {}


def count(by_name: dict[str, int], name: str, number: int = 1) -> None:
    """Add to a counter that is kept by name."""
    by_name[name] = by_name.get(name, 0) + number
