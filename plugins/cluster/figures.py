"""Figures of the cluster as one node has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.broker.counters import Metric, Sample, count
from penstock.plugins.cluster.node_sink import MOST_INBOX_BYTES

if TYPE_CHECKING:
    from penstock.plugins.cluster.mail import MailRoom
    from penstock.plugins.cluster.node import Node


def figures(node: Node) -> Iterator[Metric]:
    """Yield figures of members, owners and routes, and of messages."""
    members = node.others.members
    told, name = "Members of the cluster, this one included.", node.engine.cluster
    yield _by("nodes", told, "cluster", {name: len(members) + 1})._replace(across="max")
    yield _one("own_routes", "Topic filters of this node's sessions.", len(node.own.counts))
    owners = node.owners
    yield _one("clients_owned", "Clients that this node has.", len(owners.owned))
    steady = float(node.members.is_steady)
    reached = _one("engine_reached", "1 while beats are answered in time.", steady)
    yield reached._replace(across="each")
    told = "1 while the engine stores what this node tells, its subscriptions and its wills."
    stores = _one("engine_stores", told, not (node.told.failure or node.failure))
    yield stores._replace(across="each")
    routes = {name: len(one.routes) for name, one in members.items()}
    yield _by("routes", "Topic filters of other nodes.", "node", routes)._replace(across="max")
    taken, given = owners.n_taken, owners.n_given
    yield _one("clients_taken_total", "Clients that another node had.", taken)
    yield _one("clients_given_total", "Clients that another node has taken.", given)
    snapshots = node.members.n_snapshots
    yield _one("snapshots_total", "How often the cluster's state was read.", snapshots)
    yield _one("wills", "Wills of clients that are in the engine.", node.wills.n_kept)
    retained = node.retained
    told = "Retained messages and clears of other nodes."
    yield _one("retained_taken_over_total", told, retained.n_taken_over)
    told = "Retained messages of other nodes that are not kept, for want of room."
    yield _one("retained_lacking_total", told, retained.n_lacking)
    yield from _mail(node.mail)
    yield from _messages(node)


def _mail(mail: MailRoom) -> Iterator[Metric]:
    sink, sessions = mail.sink, mail.sessions
    yield _one(
        "kept_sessions", "Sessions here that outlive their connection.", len(sessions.sessions)
    )
    told = "Such sessions of all nodes with subscriptions, also of clients that are away."
    yield _one("mailboxes", told, len(mail.routes.boxes))._replace(across="max")
    told = "Bytes of messages for mailboxes that the engine has not stored yet."
    yield _one("mailboxes_on_way_bytes", told, sink.bytes_on_way)
    yield _one("mailbox_puts_total", "Calls that put messages into mailboxes.", sink.n_posts)
    told = "Messages taken from mailboxes."
    yield _one("mailbox_messages_total", told, sessions.n_fetched)
    told = "Messages that mailboxes have dropped."
    ended, unreadable = mail.expiry.n_dropped, sessions.n_unreadable
    dropped = {**sink.lost, "session_ended": ended, "unreadable": unreadable}
    yield _by("mailbox_dropped_total", told, "reason", dropped)
    told = "Sessions that had waited for too long, as this node has told the others."
    yield _one("sessions_expired_total", told, mail.expiry.n_expired)


def _messages(node: Node) -> Iterator[Metric]:
    inbox, sinks = node.inbox, node.sinks.items()
    told = "Entries that were put into the inboxes of nodes."
    yield _by("entries_total", told, "node", {n: one.n_entries for n, one in sinks})
    told = "Bytes of messages for nodes that the engine has not stored yet."
    yield _by("on_way_bytes", told, "node", {n: one.bytes_on_way for n, one in sinks})
    told = "Bytes in the inboxes of nodes, as the engine has last said."
    inboxes = {n: one.inbox_bytes for n, one in sinks}
    yield _by("inboxes_bytes", told, "node", inboxes)._replace(across="max")
    told = "Bytes in one inbox beyond which nothing more is put into it."
    yield _one("inboxes_limit_bytes", told, MOST_INBOX_BYTES)._replace(across="max")
    yield _one("inbox_entries_total", "Entries of the own inbox.", inbox.n_entries)
    yield _one("inbox_messages_total", "Messages in them.", inbox.n_messages)
    yield _one("inbox_bytes_total", "Bytes of them.", inbox.n_bytes)
    held = inbox.held_bytes
    yield _one("inbox_held_bytes", "Bytes of those that are not delivered yet.", held)
    told = "Messages of other nodes that this broker has refused."
    yield _by("refused_messages_total", told, "reason", inbox.refused)
    told = "Messages of shared subscriptions that went to another node again."
    yield _one("returned_messages_total", told, node.groups.n_returned)
    told = "Messages and entries of nodes that were dropped on their way."
    dropped: dict[str, int] = {}
    for one in (inbox.dropped, node.groups.dropped, node.inheritance.dropped):
        for reason, n in one.items():
            count(dropped, reason, n)
    yield _by("dropped_total", told, "reason", dropped)
    told = "Wills of dead nodes' clients that this node has published."
    yield _one("wills_published_total", told, node.inheritance.n_wills)


def _one(name: str, told: str, value: float) -> Metric:
    return _metric(name, told, [Sample({}, float(value))])


def _by(name: str, told: str, label: str, values: Mapping[str, float]) -> Metric:
    return _metric(name, told, [Sample({label: key}, float(n)) for key, n in values.items()])


def _metric(name: str, told: str, samples: Sequence[Sample]) -> Metric:
    return Metric(name, "counter" if name.endswith("_total") else "gauge", told, samples)
