"""The union of local subscriptions, and what the cloud is asked for."""

from __future__ import annotations

import random

import pytest

from penstock.broker.mqtt.topics import matches
from penstock.edge_proxy.uplink.filters import covers
from penstock.edge_proxy.uplink.remapping import DownRule, Remapping, of_parts
from penstock.edge_proxy.uplink.subscriptions import (
    NOTHING,
    Changes,
    Request,
    Subscriptions,
    Union,
    join_lanes,
    local_of,
    remote_of,
)

EVERYTHING = (DownRule(),)


def make(*rules: DownRule, linger_seconds: float = 0.0) -> Subscriptions:
    """Return what stands for a site with a fresh connection to a cloud without its session."""
    subscriptions = Subscriptions(rules or EVERYTHING, linger_seconds=linger_seconds)
    subscriptions.connected(session_present=False)
    return subscriptions


def grant(subscriptions: Subscriptions, changes: Changes) -> Changes:
    """Let the cloud answer; its retained messages come, too. Return what follows."""
    for request in changes.subscribe:
        subscriptions.answered(request.topic_filter, request.qos)
    subscriptions.retained_came(request.topic_filter for request in changes.subscribe)
    for name in changes.unsubscribe:
        subscriptions.unsubscribed(name)
    return subscriptions.changes(0.0)


def asked(changes: Changes) -> dict[str, int]:
    """Return what is to be subscribed to."""
    return {request.topic_filter: request.qos for request in changes.subscribe}


def test_twenty_clients_are_one_subscription() -> None:
    """A message crosses the network once, with the highest QoS that any of them asked for."""
    site = make()
    for number in range(20):
        site.client_subscribed(f"c{number}", "a/b", number % 3, 0.0)
    changes = site.changes(0.0)
    assert changes == Changes([Request("a/b", 2, True)], [])
    assert grant(site, changes) == Changes([], [])
    for number in range(19):
        site.session_ended(f"c{number}", 0.0)
    assert asked(site.changes(0.0)) == {"a/b": 1}


def test_what_another_filter_covers_is_not_asked_for() -> None:
    """First the wider one is granted, then the narrower one is given up: none is missed."""
    site = make()
    site.client_subscribed("a", "a/b", 2, 0.0)
    assert not grant(site, site.changes(0.0)).subscribe
    site.client_subscribed("b", "a/#", 0, 0.0)
    changes = site.changes(0.0)
    assert changes == Changes([Request("a/#", 2, True)], [])
    assert site.changes(0.0) == Changes([], [])
    assert grant(site, changes) == Changes([], ["a/b"])
    site.unsubscribed("a/b")
    site.client_unsubscribed("b", "a/#", 0.0)
    changes = site.changes(0.0)
    # What was retained below the filter that goes is here already.
    assert changes == Changes([Request("a/b", 2, False)], [])
    assert grant(site, changes) == Changes([], ["a/#"])


def test_a_client_that_subscribes_again_counts_once() -> None:
    """Its last QoS counts; giving up what it does not have changes nothing."""
    site = make()
    for qos in (0, 2, 1):
        site.client_subscribed("a", "x", qos, 0.0)
    assert asked(site.changes(0.0)) == {"x": 1}
    site.client_unsubscribed("a", "y", 0.0)
    site.client_unsubscribed("b", "x", 0.0)
    site.session_ended("b", 0.0)
    site.answered("x", 1)
    assert site.changes(0.0) == Changes([], [])
    site.client_unsubscribed("a", "x", 0.0)
    assert site.changes(0.0) == Changes([], ["x"])


def test_a_shared_subscription_counts_as_its_filter() -> None:
    """The site's broker shares among the site's members, and the cloud sends each message."""
    site = make()
    site.client_subscribed("a", "$share/g/x", 1, 0.0)
    site.client_subscribed("a", "x", 0, 0.0)
    assert asked(site.changes(0.0)) == {"x": 1}
    site.client_unsubscribed("a", "$share/g/x", 0.0)
    site.answered("x", 1)
    assert asked(site.changes(0.0)) == {"x": 0}


def test_rules_bound_topics_names_and_qos() -> None:
    """Only what a rule covers comes down, by its name in the cloud, with the rule's QoS at most."""
    site = make(
        DownRule("cmd/#", qos=1, local_prefix="here/", remote_prefix="sites/1/"),
        DownRule("news", qos=0),
    )
    site.client_subscribed("a", "#", 2, 0.0)
    assert asked(site.changes(0.0)) == {"sites/1/cmd/#": 1, "news": 0}
    site = make(DownRule("cmd/#", local_prefix="here/", remote_prefix="sites/1/"))
    site.client_subscribed("a", "+/+/now", 2, 0.0)
    site.client_subscribed("a", "cmd/now", 2, 0.0)
    assert asked(site.changes(0.0)) == {"sites/1/cmd/now": 2}


def test_a_rule_that_allows_less_qos_carries_no_filter_that_needs_more() -> None:
    """The filters overlap then, and the cloud takes the higher QoS."""
    site = make(DownRule("#", qos=0), DownRule("a/#", qos=2))
    site.client_subscribed("a", "#", 2, 0.0)
    site.client_subscribed("a", "a/b", 1, 0.0)
    assert asked(site.changes(0.0)) == {"#": 0, "a/#": 2}


def test_rules_that_always_hold_need_no_client() -> None:
    """They carry what clients subscribe to, too."""
    site = make(DownRule("a/#", qos=1, when="always"), DownRule("#"))
    changes = site.changes(0.0)
    assert asked(changes) == {"a/#": 1}
    assert not grant(site, changes).subscribe
    site.client_subscribed("a", "a/b", 1, 0.0)
    site.client_subscribed("a", "$SYS/x", 1, 0.0)
    assert site.changes(0.0) == Changes([], [])


def test_a_filter_lingers_after_its_last_client() -> None:
    """A client that restarts within the time costs no traffic."""
    site = make(linger_seconds=30.0)
    site.client_subscribed("a", "x", 1, 0.0)
    grant(site, site.changes(0.0))
    site.client_unsubscribed("a", "x", 100.0)
    assert site.next_deadline() == 130.0
    assert site.changes(129.0) == Changes([], [])
    site.client_subscribed("a", "x", 1, 129.0)
    assert site.next_deadline() is None
    assert site.changes(200.0) == Changes([], [])
    site.session_ended("a", 200.0)
    assert site.changes(230.0) == Changes([], ["x"])
    assert site.next_deadline() is None


def test_a_filter_that_is_wanted_again_waits_for_the_answer_that_it_was_given_up() -> None:
    """Otherwise the order of the answers would decide what the site takes for subscribed."""
    site = make()
    site.client_subscribed("a", "x", 1, 0.0)
    grant(site, site.changes(0.0))
    site.client_unsubscribed("a", "x", 0.0)
    assert site.changes(0.0) == Changes([], ["x"])
    site.client_subscribed("a", "x", 1, 0.0)
    assert site.changes(0.0) == Changes([], [])
    site.unsubscribed("x")
    assert site.changes(0.0) == Changes([Request("x", 1, True)], [])


def test_a_refused_filter_is_replaced_by_what_it_covers() -> None:
    """A cloud that forbids `#` may allow what the clients need; the next connection tries again."""
    site = make()
    for topic_filter in ("#", "a/#", "a/b", "c"):
        site.client_subscribed("a", topic_filter, 1, 0.0)
    assert asked(site.changes(0.0)) == {"#": 1}
    site.answered("#", 0x87)
    assert asked(site.changes(0.0)) == {"a/#": 1, "c": 1}
    for topic_filter in ("a/#", "c"):
        site.answered(topic_filter, 1)
    site.connection_lost()
    site.connected(session_present=True)
    assert "#" in asked(site.changes(0.0))


def test_what_was_not_answered_is_asked_again() -> None:
    """The cloud may have done it or not; a session that is lost is asked for everything."""
    site = make()
    for topic_filter in ("x", "y"):
        site.client_subscribed("a", topic_filter, 1, 0.0)
    grant(site, site.changes(0.0))
    site.client_subscribed("a", "z", 1, 0.0)
    site.client_unsubscribed("a", "x", 0.0)
    assert asked(site.changes(0.0)) == {"z": 1}
    site.connection_lost()
    site.connected(session_present=True)
    changes = site.changes(0.0)
    assert changes == Changes([Request("z", 1, True)], [])
    assert grant(site, changes) == Changes([], ["x"])
    site.connection_lost()
    site.connected(session_present=True)
    assert site.changes(0.0) == Changes([], ["x"])
    site.connection_lost()
    site.connected(session_present=False)
    assert asked(site.changes(0.0)) == {"y": 1, "z": 1}


def test_retained_messages_that_may_not_have_come_are_asked_for_again() -> None:
    """A connection that ends before them leaves the cache incomplete."""
    site = make()
    site.client_subscribed("a", "x", 1, 0.0)
    site.changes(0.0)
    site.answered("x", 1)
    site.connection_lost()
    site.connected(session_present=True)
    assert site.changes(0.0) == Changes([Request("x", 1, True)], [])
    site.answered("x", 1)
    site.retained_came(["x"])
    site.connection_lost()
    site.connected(session_present=True)
    assert site.changes(0.0) == Changes([], [])


def test_a_restart_knows_what_the_cloud_has() -> None:
    """What is wanted no more is given up, and what was not sure is asked again."""
    first, stored = make(), set[str]()

    def store() -> None:
        added, removed = first.record_changes()
        assert not stored.intersection(added)
        stored.difference_update(removed)
        stored.update(added)

    for topic_filter in ("x", "y/#", "z"):
        first.client_subscribed("a", topic_filter, 1, 0.0)
    grant(first, first.changes(0.0))
    store()
    first.client_subscribed("a", "new", 2, 0.0)
    first.client_unsubscribed("a", "z", 0.0)
    grant(first, Changes([], first.changes(0.0).unsubscribe))
    store()
    assert stored == {"1/x", "1/y/#", "1/z", "?/new"}

    second = Subscriptions(EVERYTHING, linger_seconds=0.0)
    second.restore(stored)
    for topic_filter in ("y/#", "new"):
        second.client_subscribed("a", topic_filter, 1, 0.0)
    second.connected(session_present=True)
    changes = second.changes(0.0)
    assert changes == Changes([Request("new", 1, True)], [])
    assert second.record_changes() == ([], [])
    assert grant(second, changes) == Changes([], ["x", "z"])
    for name in ("x", "z"):
        second.unsubscribed(name)
    added, removed = second.record_changes()
    assert (added, sorted(removed)) == (["1/new"], ["1/x", "1/z", "?/new"])


@pytest.mark.parametrize("record", ["?/x", "9/x"])
def test_a_record_that_says_no_qos_is_not_sure(record: str) -> None:
    """The cloud is asked in any case."""
    site = Subscriptions(EVERYTHING, linger_seconds=0.0)
    site.restore([record])
    site.client_subscribed("a", "x", 0, 0.0)
    site.connected(session_present=True)
    assert site.changes(0.0) == Changes([Request("x", 0, True)], [])


def test_filters_have_a_name_on_either_side() -> None:
    """As far as a rule covers them."""
    rule = DownRule("#", local_prefix="x/", remote_prefix="y/z/")
    assert remote_of(rule, "+/a/#") == "y/z/a/#"
    assert remote_of(rule, "x") == "y/z"
    assert remote_of(rule, "a") is None
    assert local_of(rule, "y/+/b") == "x/b"
    assert local_of(rule, "#") == "x/#"
    bare = DownRule("#", local_prefix="x/")
    assert remote_of(bare, "x") is None
    assert remote_of(bare, "x/$SYS/#") is None
    assert local_of(bare, "+/a") == "x/+/a"


# -- by chance ------------------------------------------------------------------------------------

RULES = (
    DownRule("a/#", qos=1, local_prefix="l/", remote_prefix="r/"),
    DownRule("+/b", qos=2),
    DownRule("+/+", qos=0, local_prefix="l/", remote_prefix="r/"),
    DownRule("a/c", qos=2, local_prefix="l/", remote_prefix="r/", when="always"),
)
FILTERS = ("#", "l/#", "l/a/#", "l/a/b", "+/b", "a/b", "l/+/b", "l/+/+", "+/a/b", "l/a/c", "$x/b")
TOPICS = tuple(
    f"{first}{second}{third}"
    for first in ("", "l/", "r/")
    for second in ("a", "b", "c", "$x")
    for third in ("", "/b", "/c", "/b/c")
)


def check_union(union: Union, clients: dict[tuple[str, str], int]) -> None:
    """Compare what is subscribed to with what each topic needs."""
    union.check_invariants()
    subscribed = union.subscribed()
    remapping = Remapping([], RULES)
    for remote_topic in TOPICS:
        needed = [
            min(qos, rule.qos)
            for (_, name), qos in clients.items()
            for rule in RULES[:-1]
            if (local := Remapping([], [rule]).down(remote_topic)) and matches(name, local)
        ]
        needed += [2] * (remote_topic == "r/a/c")
        found = [qos for name, qos in subscribed.items() if matches(name, remote_topic)]
        assert max(found, default=-1) >= max(needed, default=-1), remote_topic
        assert bool(found) == bool(needed), remote_topic
        assert not found or remapping.down(remote_topic) is not None
    for one, qos in subscribed.items():
        for other, other_qos in subscribed.items():
            is_needed = one == other or not covers(other, one) or qos > other_qos
            assert is_needed, (one, other, subscribed)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_cloud_has_the_union_in_the_end(seed: int) -> None:
    """Clients come and go, answers are slow, connections and sessions get lost."""
    rng = random.Random(seed)  # noqa: S311 (no secret)
    site = Subscriptions(RULES, linger_seconds=2.0)
    clients: dict[tuple[str, str], int] = {}
    cloud: dict[str, int] = {}
    unanswered: list[Changes] = []
    is_connected = False

    def settle() -> None:
        changes = unanswered.pop(0)
        for request in changes.subscribe:
            cloud[request.topic_filter] = request.qos
            site.answered(request.topic_filter, request.qos)
        for name in changes.unsubscribe:
            cloud.pop(name, None)
            site.unsubscribed(name)
        if rng.random() < 0.7:
            site.retained_came(name for name, *_ in changes.subscribe)

    def connect() -> None:
        if rng.random() < 0.3:
            cloud.clear()
            site.connected(session_present=False)
        else:
            site.connected(session_present=True)

    for now in range(300):
        key = rng.choice("xyz"), rng.choice(FILTERS)
        what = rng.random()
        if what < 0.4:
            clients[key] = rng.randrange(3)
            site.client_subscribed(*key, clients[key], now)
        elif what < 0.7:
            clients.pop(key, None)
            site.client_unsubscribed(*key, now)
        elif what < 0.75:
            clients = {other: qos for other, qos in clients.items() if other[0] != key[0]}
            site.session_ended(key[0], now)
        elif what < 0.8 and is_connected:
            site.connection_lost()
            for changes in unanswered:  # the cloud got some of it
                if rng.random() < 0.5:
                    cloud.update({name: qos for name, qos, *_ in changes.subscribe})
            unanswered.clear()
            is_connected = False
        elif not is_connected:
            connect()
            is_connected = True
        elif unanswered:
            settle()
        if is_connected:
            unanswered.append(site.changes(now))
        site.union.check_invariants()
        if rng.random() < 0.1:
            added, removed = site.record_changes()
            assert not set(added) & set(removed)
    if not is_connected:
        connect()
    unanswered.append(site.changes(1_000.0))
    while unanswered:
        settle()
        changes = site.changes(1_000.0)
        if changes != Changes([], []):
            unanswered.append(changes)
    check_union(site.union, clients)
    assert cloud == site.union.subscribed()


# -- two lanes ------------------------------------------------------------------------------------


class Cloud:
    """A cloud's broker with the sessions of both lanes, each connection with its own delay.

    Attributes:
        lanes: by name, that of small messages first.
        sessions: what each session has: filter to size class, None for both.
        connected: lanes that stand.
    """

    def __init__(self, *rules: DownRule) -> None:
        self.lanes = {
            name: Subscriptions(rules or EVERYTHING, linger_seconds=0.0)
            for name in ("small", "large")
        }
        self.sessions: dict[str, dict[str, str | None]] = {"small": {}, "large": {}}
        self.connected = set[str]()
        self._unanswered: dict[str, list[Changes]] = {"small": [], "large": []}
        self._received: dict[str, list[Changes]] = {"small": [], "large": []}
        small, large = self.lanes.values()
        self._woken = set[str]()
        join_lanes(
            small,
            large,
            wake_one=lambda: self._woken.add("small"),
            wake_other=lambda: self._woken.add("large"),
        )

    def connect(self, lane: str, *, session_present: bool = True) -> None:
        """Let a lane connect."""
        site = self.lanes[lane]
        site.comes(is_so=True)
        if not session_present:
            self.sessions[lane].clear()
        site.connected(session_present=session_present)
        site.take("small" if lane == "small" else "large")
        self.connected.add(lane)
        self.ask(lane)

    def ask(self, lane: str) -> None:
        """Let a lane ask, and whichever it wakes."""
        if lane in self.connected:
            changes = self.lanes[lane].changes(0.0)
            if any(changes):
                self._unanswered[lane].append(changes)
        while self._woken:
            self.ask(self._woken.pop())

    def receive(self, lane: str) -> None:
        """Let the cloud take what a lane has asked first."""
        if self._unanswered[lane]:
            changes = self._unanswered[lane].pop(0)
            for request in changes.subscribe:
                self.sessions[lane][request.topic_filter] = request.sizes
            for name in changes.unsubscribe:
                self.sessions[lane].pop(name, None)
            self._received[lane].append(changes)

    def answer(self, lane: str) -> None:
        """Let an answer of the cloud come."""
        if self._received[lane]:
            changes = self._received[lane].pop(0)
            site = self.lanes[lane]
            for request in changes.subscribe:
                site.answered(request.topic_filter, request.qos)
            site.retained_came(request.topic_filter for request in changes.subscribe)
            for name in changes.unsubscribe:
                site.unsubscribed(name)
            self.ask(lane)

    def lose(self, lane: str) -> None:
        """Let a connection be lost, with all that is on its way."""
        self.connected.discard(lane)
        self._unanswered[lane].clear()
        self._received[lane].clear()
        self.lanes[lane].connection_lost()
        self.lanes[lane].comes(is_so=False)
        self.settle_woken()

    def settle_woken(self) -> None:
        """Let those ask that were woken."""
        while self._woken:
            self.ask(self._woken.pop())

    def settle(self) -> None:
        """Let everything come."""
        for _ in range(20):
            for lane in self.lanes:
                self.receive(lane)
                self.answer(lane)

    def classes(self, name: str) -> set[str]:
        """Return the size classes of a filter that come down on any lane."""
        found = [session[name] for session in self.sessions.values() if name in session]
        return {"small", "large"} if None in found else {one for one in found if one}


def test_each_lane_asks_for_its_own_class_where_both_are_coming() -> None:
    """So nothing comes twice, not even what is retained."""
    cloud = Cloud()
    for site in cloud.lanes.values():
        site.comes(is_so=True)
        site.client_subscribed("a", "x", 1, 0.0)
    cloud.connect("small")
    cloud.connect("large")
    cloud.settle()
    assert cloud.sessions == {"small": {"x": "small"}, "large": {"x": "large"}}


def test_a_lane_alone_asks_for_both_classes_until_the_other_one_was_granted_its_own() -> None:
    """Also for what a client subscribes to while the other lane is away; the other way, too."""
    for here, away in (("small", "large"), ("large", "small")):
        cloud = Cloud()
        for site in cloud.lanes.values():
            site.client_subscribed("a", "x", 1, 0.0)
        cloud.connect(here)
        cloud.settle()
        assert cloud.sessions == {here: {"x": None}, away: {}}
        cloud.connect(away)
        for lane in (here, away, here):
            cloud.receive(lane)
        assert cloud.sessions == {here: {"x": None}, away: {"x": away}}
        cloud.settle()
        assert cloud.sessions == {here: {"x": here}, away: {"x": away}}
        cloud.lose(away)
        for site in cloud.lanes.values():
            site.client_subscribed("a", "y", 1, 0.0)
        cloud.ask(here)
        cloud.settle()
        assert cloud.sessions == {here: {"x": here, "y": None}, away: {"x": away}}


def test_a_lane_whose_session_the_cloud_has_lost_is_stood_in_for() -> None:
    """The other lane is told so, and asks for both classes."""
    cloud = Cloud(DownRule("x", when="always"))
    cloud.connect("small")
    cloud.connect("large")
    cloud.settle()
    cloud.lose("large")
    cloud.lose("small")
    cloud.sessions["large"].clear()
    cloud.lanes["large"].cloud_has_lost()
    cloud.connect("small")
    cloud.settle()
    assert cloud.sessions == {"small": {"x": None}, "large": {}}


def test_a_lane_gives_up_what_the_other_one_takes_over_when_that_was_granted() -> None:
    """In both classes: lanes were removed, or the cloud divides by size no more."""
    cloud = Cloud(DownRule("x", when="always"))
    cloud.connect("small")
    cloud.connect("large")
    cloud.settle()
    cloud.lanes["large"].take(NOTHING)
    cloud.ask("large")
    cloud.settle()
    assert cloud.sessions == {"small": {"x": "small"}, "large": {"x": "large"}}
    cloud.lanes["small"].take(None)
    cloud.ask("small")
    cloud.receive("small")
    assert cloud.sessions == {"small": {"x": None}, "large": {"x": "large"}}
    cloud.settle()
    assert cloud.sessions == {"small": {"x": None}, "large": {}}


def test_a_restart_knows_in_which_class_the_cloud_was_asked() -> None:
    """A site that has lanes no more asks for both, though the QoS is the same."""
    cloud = Cloud(DownRule("x", when="always"))
    cloud.connect("small")
    cloud.connect("large")
    cloud.settle()
    assert [site.record_changes()[0] for site in cloud.lanes.values()] == [["2s/x"], ["2l/x"]]
    site = Subscriptions([DownRule("x", when="always")], linger_seconds=0.0)
    site.restore(["2s/x"])
    site.connected(session_present=True)
    assert site.changes(0.0) == Changes([Request("x", 2, False, None)], [])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_class_that_came_down_is_without_a_lane(seed: int) -> None:
    """Lanes come and go, and what is on its way comes late, or is lost."""
    rng = random.Random(seed)  # noqa: S311 (no secret)
    cloud = Cloud()
    for site in cloud.lanes.values():
        site.client_subscribed("a", "x", 1, 0.0)
    came = set[str]()
    for _ in range(400):
        lane = rng.choice(("small", "large"))
        what = rng.random()
        if what < 0.4:
            cloud.receive(lane)
        elif what < 0.8:
            cloud.answer(lane)
        elif lane in cloud.connected:
            cloud.lose(lane)
        elif what < 0.85:
            cloud.lanes[lane].comes(is_so=True)  # an attempt, which may fail
        elif what < 0.9:
            cloud.lanes[lane].comes(is_so=False)
            cloud.settle_woken()
        else:
            cloud.connect(lane)
        assert came <= cloud.classes("x")
        came = cloud.classes("x")
    for lane in cloud.lanes:
        if lane not in cloud.connected:
            cloud.connect(lane)
    cloud.settle()
    assert cloud.sessions == {"small": {"x": "small"}, "large": {"x": "large"}}


def test_parts_are_not_asked_for_again_while_the_cloud_has_the_session() -> None:
    """It has kept them all; what is retained may be long."""
    rules = Remapping((), of_parts((DownRule("a/#", parts=True), DownRule("b/#")), "parts"))
    site = make(*rules.down_rules)
    site.client_subscribed("c", "parts/a/#", 1, 0.0)
    site.client_subscribed("c", "b/#", 1, 0.0)
    assert grant(site, site.changes(0.0)) == Changes([], [])
    for session_present, names in ((True, {"b/#": 1}), (False, {"b/#": 1, "parts/a/#": 1})):
        site.connection_lost()
        site.connected(session_present=session_present, refreshes=True)
        changes = site.changes(0.0)
        assert asked(changes) == names
        grant(site, changes)
