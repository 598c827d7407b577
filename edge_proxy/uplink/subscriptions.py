"""Subscriptions in the cloud: the union of what the site's clients have subscribed to.

Theory of operation. A client's filter is intersected with each rule of the way down. Each
intersection, by its name in the cloud, is *wanted*, at the highest QoS of the clients that want it,
up to that of the rule. The uplink subscribes to the wanted filters that no other one covers, at the
highest QoS of those that they cover. A filter whose rule allows less QoS than another one needs
does not cover it. So a message crosses the network once for the whole site, except where two
filters overlap without one covering the other and the cloud's broker sends a copy for each.

A filter stays wanted for some seconds after its last client has unsubscribed: a client that is
restarted causes no traffic. So does a QoS that has become too high.

The cloud's broker keeps its session, and with it the subscriptions. The uplink asks for the
difference to what the broker is known to have. It first subscribes to what is new. It unsubscribes
from what is not wanted any more when the broker has granted that: a topic that moves from one
filter to another is never without a subscription. A request that was not answered when the
connection ended is repeated.

An uplink with lanes has one `Subscriptions` for each lane, joined by `join_lanes`. A lane
subscribes to a filter in its own size class only while the cloud has granted that filter to the
other lane, or while the other lane is about to ask for it as well. Otherwise it asks for both
classes. It unsubscribes from a filter that the other lane wants when the cloud has granted that to
the other lane in both classes. So a size class that the cloud has granted is never without a lane.
Where both lanes have a class for a moment, the cloud's broker sends one copy
(`penstock.broker.sessions.lanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import SizeClass
from penstock.broker.mqtt.topics import parse_share
from penstock.edge_proxy.uplink.filters import FilterTree, canonical, covers, intersection
from penstock.edge_proxy.uplink.remapping import DownRule

UNSURE: Final = -1
"""Stands for a QoS where it is unknown whether the cloud's broker has the subscription."""

_REFUSED: Final = 0x80
"""The least reason code of a SUBACK that is a refusal."""

NOTHING: Final = "nothing"
"""Stands for a size class where nothing is to come down on a lane."""

Classes: TypeAlias = SizeClass | Literal["nothing"] | None
"""What is to come down on a lane: a size class, `NOTHING`, or None for both classes."""

_LETTERS: Final = {"": None} | {sizes[0]: sizes for sizes in get_args(SizeClass)}
"""Maps the letter in a record to its size class."""


class Request(NamedTuple):
    """One filter of a SUBSCRIBE for the cloud.

    Attributes:
        wants_retained: whether retained messages are to be sent (Retain Handling 0, else 2).
        sizes: size class of the messages; None for both.
    """

    topic_filter: str
    qos: int
    wants_retained: bool
    sizes: SizeClass | None = None


class _Known(NamedTuple):
    """The known state of one subscription of the cloud's session.

    Attributes:
        qos: the QoS of the last request; `UNSURE` if that was not answered.
        sizes: the size class of the last request; None for both.
        is_there: whether the session certainly has the subscription, perhaps with another QoS or
            with both classes.
    """

    qos: int
    sizes: SizeClass | None
    is_there: bool


class Changes(NamedTuple):
    """The requests to send to the cloud now.

    Attributes:
        unsubscribe: the filters to unsubscribe; none while a subscription waits for its answer.
    """

    subscribe: Sequence[Request] = ()
    unsubscribe: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class _Interest:
    """The site's clients with one topic filter.

    Attributes:
        by_qos: the number of clients for each QoS that they were granted.
        qos: the QoS that is wanted, -1 for none. It falls only at `due_at`.
        due_at: monotonic seconds; None if `qos` is the highest of `by_qos`.
    """

    by_qos: list[int] = field(default_factory=lambda: [0, 0, 0])
    qos: int = -1
    due_at: float | None = None


@dataclass(slots=True, eq=False)
class _Wanted:
    """One topic filter of the cloud that the site wants.

    Attributes:
        by_most: for each QoS, the number of interests with a rule that allows it.
        carrier: the filter that is subscribed to instead; "" for none.
        carried: the filters instead of which it is subscribed to; a dict, to keep their order.
        carried_by_qos: for each QoS, the number of `carried` filters that want it.
    """

    by_qos: list[int] = field(default_factory=lambda: [0, 0, 0])
    by_most: list[int] = field(default_factory=lambda: [0, 0, 0])
    carrier: str = ""
    carried: dict[str, None] = field(default_factory=dict)
    carried_by_qos: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def own_qos(self) -> int:
        """Highest QoS with which it is wanted itself; -1 for none."""
        return _highest(self.by_qos)

    @property
    def most_qos(self) -> int:
        """Highest QoS that its rules allow."""
        return _highest(self.by_most)

    @property
    def qos(self) -> int:
        """QoS of its subscription, if it has no carrier."""
        return max(self.own_qos, _highest(self.carried_by_qos))


class Union:
    """The wanted filters of the cloud, and which of them are subscribed to.

    Invariants, tested by `check_invariants`: each wanted filter is subscribed to, or has a carrier
    that covers it, allows its QoS, and is subscribed to. A filter that the cloud refuses carries
    none.

    Attributes:
        changed: the filters for which `qos_of` may have changed; the reader empties it.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, _Wanted] = {}
        self._roots = FilterTree()
        self._refused: set[str] = set()
        self.changed: set[str] = set()

    def qos_of(self, topic_filter: str) -> int | None:
        """Return the QoS of the subscription to a filter; None where there is to be none."""
        wanted = self._wanted.get(topic_filter)
        if wanted is None or wanted.carrier or topic_filter in self._refused:
            return None
        return wanted.qos

    def subscribed(self) -> dict[str, int]:
        """Return all subscriptions: filter to QoS."""
        found = ((name, self.qos_of(name)) for name in self._wanted)
        return {name: qos for name, qos in found if qos is not None}

    def count(self, topic_filter: str, qos: int, most_qos: int, n_more: int) -> None:
        """Note that a filter is wanted once more, or once less.

        Args:
            topic_filter: the filter by its name in the cloud, canonical.
            qos: QoS with which it is wanted.
            most_qos: QoS that the rule allows.
            n_more: 1, or -1 to undo a call with the same arguments and 1.
        """
        wanted = self._wanted.setdefault(topic_filter, _Wanted())
        before = (wanted.own_qos, wanted.most_qos)
        by_qos, by_most = wanted.by_qos[:], wanted.by_most[:]
        by_qos[qos] += n_more
        by_most[most_qos] += n_more
        if before == (_highest(by_qos), _highest(by_most)):
            wanted.by_qos, wanted.by_most = by_qos, by_most
            return
        to_place = [topic_filter, *self._take_out(topic_filter)]
        wanted.by_qos, wanted.by_most = by_qos, by_most
        if not any(by_qos):
            del self._wanted[topic_filter]
            to_place.remove(topic_filter)
        self._place(to_place)

    def refuse(self, topic_filter: str) -> None:
        """Note that the cloud refuses a filter: the filters that it covers get subscriptions."""
        self._refused.add(topic_filter)
        if topic_filter in self._wanted:
            self._place([topic_filter, *self._take_out(topic_filter)])

    def forget_refusals(self) -> None:
        """Ask for refused filters again, as there is a new connection."""
        refused, self._refused = self._refused, set()
        for topic_filter in refused & self._wanted.keys():
            self._place([topic_filter, *self._take_out(topic_filter)])

    def _take_out(self, topic_filter: str) -> list[str]:
        """Detach a filter from its carrier and from what it carries; return the latter."""
        self.changed.add(topic_filter)
        wanted = self._wanted[topic_filter]
        self._roots.discard(topic_filter)
        if wanted.carrier:
            carrier = self._wanted[wanted.carrier]
            del carrier.carried[topic_filter]
            carrier.carried_by_qos[wanted.own_qos] -= 1
            self.changed.add(wanted.carrier)
            wanted.carrier = ""
        orphans = list(wanted.carried)
        for name in orphans:
            self._wanted[name].carrier = ""
        wanted.carried.clear()
        wanted.carried_by_qos = [0, 0, 0]
        return orphans

    def _place(self, to_place: list[str]) -> None:
        """Give filters a carrier, or make them subscriptions that carry others.

        Args:
            to_place: filters that have no carrier, carry nothing and are not subscribed to.
        """
        for name in to_place:  # which grows
            self.changed.add(name)
            if name in self._refused:
                continue
            wanted = self._wanted[name]
            carrier = next(
                (one for one in self._roots.covering(name) if self._can_carry(one, wanted)), None
            )
            if carrier is not None:
                self._carry(carrier, name)
                continue
            covered = list(self._roots.covered_by(name))
            self._roots.add(name)
            for other in covered:
                if self._can_carry(name, self._wanted[other]):
                    to_place += self._take_out(other)
                    self._carry(name, other)

    def _can_carry(self, carrier: str, wanted: _Wanted) -> bool:
        return self._wanted[carrier].most_qos >= wanted.own_qos

    def _carry(self, carrier: str, topic_filter: str) -> None:
        wanted = self._wanted[topic_filter]
        wanted.carrier = carrier
        by = self._wanted[carrier]
        by.carried[topic_filter] = None
        by.carried_by_qos[wanted.own_qos] += 1
        self.changed.add(carrier)

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        for name, wanted in self._wanted.items():
            is_root = not wanted.carrier and name not in self._refused
            assert is_root == (name in self._roots), name  # noqa: S101 (this is the check)
            counts = [0, 0, 0]
            for other in wanted.carried:
                carried = self._wanted[other]
                assert is_root, name  # noqa: S101
                assert carried.carrier == name, other  # noqa: S101
                assert covers(name, other), other  # noqa: S101
                assert wanted.most_qos >= carried.own_qos, other  # noqa: S101
                counts[carried.own_qos] += 1
            assert counts == wanted.carried_by_qos, name  # noqa: S101
        carried_ones = {name for one in self._wanted.values() for name in one.carried}
        with_carrier = {name for name, one in self._wanted.items() if one.carrier}
        assert carried_ones == with_carrier  # noqa: S101


class Subscriptions:
    """The subscriptions that one lane wants in the cloud, and those that the cloud has."""

    def __init__(self, rules: Iterable[DownRule], *, linger_seconds: float) -> None:
        """Begin without clients, and with a cloud that has nothing."""
        self.union = Union()
        self._linger_seconds = linger_seconds
        self._rules = []
        self._in_parts = []
        for rule in rules:
            if rule.parts:
                self._in_parts.append(canonical(rule.remote_filter))
            if rule.when == "always":
                self.union.count(canonical(rule.remote_filter), rule.qos, rule.qos, 1)
            else:
                self._rules.append(rule)
        self._of_client: dict[str, dict[str, int]] = {}
        self._interests: dict[str, _Interest] = {}
        self._due: dict[str, None] = {}
        self._known: dict[str, _Known] = {}
        self._tree = FilterTree()
        self._asked: dict[str, Request] = {}
        self._given_up: set[str] = set()
        self._incomplete: set[str] = set()
        self._recorded: dict[str, str] = {}
        self._takes: Classes = None
        self.is_coming = False
        self._other: Subscriptions | None = None
        self._wake: Callable[[], None] = lambda: None

    # -- the other lane ------------------------------------------------------------------------

    def take(self, classes: Classes) -> None:
        """Note what is to come down on this lane while both are connected, for all filters."""
        if classes != self._takes:
            self._takes = classes
            self.union.changed |= self._known.keys() | self.union.subscribed().keys()

    def comes(self, *, is_so: bool) -> None:
        """Note whether this lane is connected, or about to be, and will ask for what is wanted."""
        if self.is_coming and not is_so and self._other is not None:
            self._other.look_again(self._other.union.subscribed())
        self.is_coming = is_so

    @property
    def has_none(self) -> bool:
        """Whether the cloud's session certainly has no subscription."""
        return not self._known

    def cloud_has_lost(self) -> None:
        """Note that the cloud has no session of this lane."""
        for name in list(self._known):
            self._set_known(name, None)
        self._recorded.clear()  # with the session that holds them
        self.union.changed |= self.union.subscribed().keys()

    def look_again(self, names: Iterable[str]) -> None:
        """Check some filters again, as something has changed on the other lane."""
        self.union.changed.update(names)
        self._wake()

    def has(self, name: str) -> bool:
        """Say whether the cloud has granted a filter, in this lane's size class at least."""
        known = self._known.get(name)
        return known is not None and known.is_there

    def has_both_classes(self, name: str) -> bool:
        """Say whether the cloud has granted a filter in both size classes."""
        known = self._known.get(name)
        return known is not None and known.qos != UNSURE and known.sizes is None

    def wants(self, name: str) -> bool:
        """Say whether this lane is to subscribe to a filter."""
        return self._qos_of(name) is not None

    def _qos_of(self, name: str) -> int | None:
        return None if self._takes == NOTHING else self.union.qos_of(name)

    def _sizes_of(self, name: str) -> SizeClass | None:
        """Return the size class of the subscription to a filter; None for both."""
        own, other = self._takes, self._other
        if own is None or own == NOTHING or other is None or other.has(name):
            return None if own == NOTHING else own
        if not other.is_coming:
            return None
        # The other lane asks for it, too. Until that is granted, this lane must not get less.
        known = self._known.get(name)
        return own if known is None else known.sizes

    def _may_give_up(self, name: str) -> bool:
        other = self._other
        return other is None or not other.wants(name) or other.has_both_classes(name)

    # -- the site ------------------------------------------------------------------------------

    def client_subscribed(self, client_id: str, topic_filter: str, qos: int, now: float) -> None:
        """Note what a client was granted, also in a session that was restored."""
        name = _filter_of(topic_filter)
        if not any(self._remote_filters(name)):
            return
        filters = self._of_client.setdefault(client_id, {})
        last_qos = filters.get(topic_filter)
        filters[topic_filter] = qos
        interest = self._interests.setdefault(name, _Interest())
        interest.by_qos[qos] += 1
        if last_qos is not None:
            interest.by_qos[last_qos] -= 1
        self._look(name, interest, now)

    def client_unsubscribed(self, client_id: str, topic_filter: str, now: float) -> None:
        """Note that a client has unsubscribed from a filter."""
        filters = self._of_client.get(client_id, {})
        qos = filters.pop(topic_filter, None)
        if qos is None:
            return
        if not filters:
            del self._of_client[client_id]
        name = _filter_of(topic_filter)
        interest = self._interests[name]
        interest.by_qos[qos] -= 1
        self._look(name, interest, now)

    def session_ended(self, client_id: str, now: float) -> None:
        """Note that the session of a client has ended."""
        for topic_filter in list(self._of_client.get(client_id, {})):
            self.client_unsubscribed(client_id, topic_filter, now)

    def next_deadline(self) -> float | None:
        """Return when `changes` must be called again; None where there is no such time."""
        name = next(iter(self._due), None)
        return None if name is None else self._interests[name].due_at

    def _look(self, name: str, interest: _Interest, now: float) -> None:
        """Let the QoS of an interest rise at once, and fall after a while."""
        highest = _highest(interest.by_qos)
        if highest >= interest.qos:
            interest.due_at = None
            self._due.pop(name, None)
            self._settle(name, interest)
        elif interest.due_at is None:
            interest.due_at = now + self._linger_seconds
            self._due[name] = None

    def _settle(self, name: str, interest: _Interest) -> None:
        """Let the highest QoS of the clients count now."""
        last_qos, interest.qos = interest.qos, _highest(interest.by_qos)
        interest.due_at = None
        if interest.qos != last_qos:
            for remote_filter, most_qos in self._remote_filters(name):
                if interest.qos >= 0:
                    self.union.count(remote_filter, min(interest.qos, most_qos), most_qos, 1)
                if last_qos >= 0:
                    self.union.count(remote_filter, min(last_qos, most_qos), most_qos, -1)
        if interest.qos < 0:
            del self._interests[name]

    def _remote_filters(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield what a filter of the site stands for in the cloud: (filter, QoS of the rule)."""
        for rule in self._rules:
            remote_filter = remote_of(rule, name)
            if remote_filter is not None:
                yield remote_filter, rule.qos

    # -- the cloud -----------------------------------------------------------------------------

    def restore(self, records: Iterable[str]) -> None:
        """Restore what `record_changes` had stored before a restart."""
        for record in records:
            head, _, name = record.partition("/")
            qos, letter = head[:1], head[1:]
            is_sure = name not in self._recorded and qos in ("0", "1", "2") and letter in _LETTERS
            sizes = _LETTERS.get(letter)
            self._set_known(name, _Known(int(qos) if is_sure else UNSURE, sizes, is_sure))
            self._recorded[name] = record
        self.union.changed |= self._known.keys()

    def connected(self, *, session_present: bool, refreshes: bool = False) -> None:
        """Note that the cloud has accepted a connection.

        Args:
            session_present: the cloud has the session.
            refreshes: all filters are asked for again, with their retained messages. Those of parts
                are not: the session has kept parts, as none has QoS 0, and retained ones are long.
        """
        if refreshes:
            for name in list(self._known):
                if not any(covers(parts, name) for parts in self._in_parts):
                    self._doubt(name)
        if not session_present:
            self.cloud_has_lost()
        self.union.forget_refusals()

    def connection_lost(self) -> None:
        """Note that requests which were not answered will not be."""
        for name in (*self._asked, *self._given_up, *self._incomplete):
            self._doubt(name)
        self._asked.clear()
        self._given_up.clear()
        self._incomplete.clear()

    def changes(self, now: float) -> Changes:
        """Return what is to be asked of the cloud now; it counts as asked.

        Call it when the cloud has accepted the connection and after each of its answers, when a
        client has subscribed or unsubscribed, and at `next_deadline`.
        """
        while self._due:
            name = next(iter(self._due))
            due_at = self._interests[name].due_at
            if due_at is not None and due_at > now:
                break
            del self._due[name]
            self._settle(name, self._interests[name])
        changed, later, wanted_less = self.union.changed, set(), []
        requests = []
        for name in sorted(changed):
            qos, known = self._qos_of(name), self._known.get(name)
            if name in self._asked or name in self._given_up:
                later.add(name)
            elif qos is None:
                if known is None:
                    continue
                if self._may_give_up(name):
                    wanted_less.append(name)
                else:
                    later.add(name)
            elif known is None or known[:2] != (qos, self._sizes_of(name)):
                requests.append(
                    Request(name, qos, self._wants_retained(name), self._sizes_of(name))
                )
        for request in requests:
            name = request.topic_filter
            self._asked[name] = request
            self._set_known(name, _Known(UNSURE, request.sizes, self.has(name)))
            if request.wants_retained:  # they may come before the answer
                self._incomplete.add(name)
        if self._asked:
            later.update(wanted_less)
            wanted_less = []
        self._given_up.update(wanted_less)
        for name in wanted_less:
            self._set_known(name, self._known[name]._replace(is_there=False))
        self.union.changed = later
        return Changes(requests, wanted_less)

    def answered(self, topic_filter: str, reason_code: int) -> None:
        """Handle one reason code of a SUBACK."""
        request = self._asked.pop(topic_filter, None)
        if request is None:
            return
        self.union.changed.add(topic_filter)
        if reason_code >= _REFUSED:
            self._incomplete.discard(topic_filter)
            self._set_known(topic_filter, None)
            self.union.refuse(topic_filter)
            return
        # The cloud may grant a lower QoS. It is not asked again.
        self._set_known(topic_filter, _Known(request.qos, request.sizes, is_there=True))

    def unsubscribed(self, topic_filter: str) -> None:
        """Handle a reason code of an UNSUBACK: whatever it is, the subscription is gone."""
        if topic_filter in self._given_up:
            self._given_up.discard(topic_filter)
            self._incomplete.discard(topic_filter)
            self._set_known(topic_filter, None)
            self.union.changed.add(topic_filter)

    def retained_came(self, topic_filters: Iterable[str]) -> None:
        """Note that the retained messages of some filters have come, or cannot be waited for.

        Call it after `changes` has asked for them. Before that, the loss of the connection makes
        the cloud send them again.
        """
        self._incomplete.difference_update(topic_filters)

    def record_changes(self) -> tuple[list[str], list[str]]:
        """Return what is to be stored about the cloud's session: (texts to add, texts to remove).

        Each text is a QoS or ``?`` for an unknown one, ``s`` or ``l`` for a subscription of one
        size class, a slash, and the filter.
        """
        added, removed = [], []
        for name in self._known.keys() | self._recorded.keys():
            known = self._known.get(name)
            record = ""
            if known is not None:
                is_sure = name not in self._incomplete and known.qos != UNSURE
                letter = "" if known.sizes is None else known.sizes[0]
                record = f"{known.qos if is_sure else '?'}{letter}/{name}"
            last = self._recorded.get(name, "")
            if record == last:
                continue
            if record:
                added.append(record)
                self._recorded[name] = record
            else:
                del self._recorded[name]
            if last:
                removed.append(last)
        return added, removed

    def _wants_retained(self, name: str) -> bool:
        """Say whether retained messages of a filter may be missing at the site."""
        known = self._known.get(name)
        if known is not None and known.qos == UNSURE:
            return True
        return all(
            self._known[one].qos == UNSURE or one in self._incomplete
            for one in self._tree.covering(name)
        )

    def _doubt(self, name: str) -> None:
        """Ask for a filter again: its last answer has not come, or does not suffice."""
        known = self._known.get(name)
        if known is not None:
            self._set_known(name, known._replace(qos=UNSURE))
        self.union.changed.add(name)

    def _set_known(self, name: str, known: _Known | None) -> None:
        last = self._known.get(name)
        if known is None:
            self._known.pop(name, None)
            self._tree.discard(name)
        else:
            self._known[name] = known
            self._tree.add(name)
        if self._other is not None and known != last:
            self._other.look_again((name,))


def join_lanes(
    one: Subscriptions,
    other: Subscriptions,
    *,
    wake_one: Callable[[], None],
    wake_other: Callable[[], None],
) -> None:
    """Join two lanes of an uplink."""
    for mine, its, wake in ((one, other, wake_one), (other, one, wake_other)):
        mine._other = its  # noqa: SLF001 (of its kind)
        mine._wake = wake  # noqa: SLF001


def remote_of(rule: DownRule, local_filter: str) -> str | None:
    """Return the part of a site's filter that a rule covers, by its name in the cloud, or None."""
    own, other = (rule.local_filter, rule.local_prefix), (rule.remote_prefix, rule.remote_filter)
    return _translated(local_filter, *own, *other)


def local_of(rule: DownRule, remote_filter: str) -> str | None:
    """Return the part of a cloud's filter that a rule covers, by its name at the site, or None."""
    own, other = (rule.remote_filter, rule.remote_prefix), (rule.local_prefix, rule.local_filter)
    return _translated(remote_filter, *own, *other)


def _translated(
    topic_filter: str, from_filter: str, from_prefix: str, to_prefix: str, to_filter: str
) -> str | None:
    common = intersection(topic_filter, from_filter)
    if common is None:
        return None
    if common.startswith(from_prefix):
        renamed = to_prefix + common[len(from_prefix) :]
    else:  # "a" of "a/#"
        renamed = to_prefix.removesuffix("/")
    return intersection(renamed, to_filter) if renamed else None


def _filter_of(topic_filter: str) -> str:
    """Return the filter of a subscription, shared or not."""
    try:
        return parse_share(topic_filter).topic_filter
    except MalformedPacketError:
        return topic_filter


def _highest(by_qos: Sequence[int]) -> int:
    """Return the highest QoS of which there is any; -1 for none."""
    return next((qos for qos in (2, 1, 0) if by_qos[qos]), -1)
