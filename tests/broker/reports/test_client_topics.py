from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.broker.access_control import RECEIVE, AccessControl, Action, SessionView
from penstock.broker.mqtt.packets import Publish, Subscribe, SubscriptionRequest, Unsubscribe
from penstock.broker.mqtt.topics import validate_topic
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.reports.client_topics import DOCUMENTS, ROOT, ClientTopics, topic_level
from tests.helpers.virtual import VirtualBroker, VirtualClient

INTERVAL = 10.0


def broker_of(*client_ids: str, **extensions: Any) -> tuple[VirtualBroker, VirtualClient]:
    """Return a broker that publishes clients' topics, with these clients, and a watcher."""
    broker = VirtualBroker(**extensions)
    ClientTopics(broker.core).start(broker.now, INTERVAL)
    for client_id in client_ids:
        broker.connect(client_id)
    return broker, broker.connect("watcher")


def documents(client: VirtualClient) -> dict[str, Any]:
    """Take what has come, by topic below `ROOT`."""
    packets = client.take_all(Publish)
    found = {one.topic.removeprefix(f"{ROOT}/"): json.loads(one.payload) for one in packets}
    assert len(found) == len(packets), "one twice"
    return found


def named(*client_ids: str) -> set[str]:
    """Return the topics of all documents of these clients."""
    return {f"{topic_level(client_id)}/{name}" for client_id in client_ids for name in DOCUMENTS}


def test_who_names_a_client_gets_its_documents_at_once_and_then_each_interval() -> None:
    """As if they were retained, but made when they are asked for."""
    broker, watcher = broker_of("dev7", "dev8")
    watcher.subscribe(f"{ROOT}/dev7/#")
    broker.advance(0)
    found = documents(watcher)
    told = report(subject_of(broker.session("dev7")), broker.now)
    assert found.keys() == named("dev7")
    assert found["dev7/link"] == {**told.link._asdict()}
    assert found["dev7/withholding"] == {**told.withholding._asdict()}
    assert found["dev7/ledger"] == {**told.ledger._asdict()}
    assert told.subscriptions is not None
    assert found["dev7/subscriptions"] == {**told.subscriptions._asdict()}
    for _ in range(3):
        broker.advance(INTERVAL)
        assert documents(watcher).keys() == named("dev7")
    watcher.send(Unsubscribe(2, (f"{ROOT}/dev7/#",)))
    broker.advance(INTERVAL)
    assert documents(watcher) == {}
    assert not [topic for topic in broker.core.retained.by_topic if topic.startswith(ROOT)]


def test_who_names_one_document_gets_no_other() -> None:
    """Not more is made than is wanted."""
    broker, watcher = broker_of("dev7")
    watcher.subscribe(f"{ROOT}/dev7/link")
    broker.advance(INTERVAL / 2)
    assert documents(watcher).keys() == {"dev7/link"}


@pytest.mark.parametrize("topic_filter", [f"{ROOT}/#", f"{ROOT}/+/#", f"{ROOT}/+/+"])
def test_all_clients_come_spread_over_the_interval(topic_filter: str) -> None:
    """Each client once in an interval, a few at a time: nobody else waits for thousands."""
    client_ids = [f"dev{n}" for n in range(199)]
    broker, watcher = broker_of(*client_ids)
    watcher.subscribe(topic_filter)
    found: dict[str, Any] = {}
    most = 0
    broker.advance(INTERVAL)
    for _ in range(100):
        some = documents(watcher)
        assert not some.keys() & found.keys(), "one came twice"
        found |= some
        most = max(most, len(some))
        broker.advance(INTERVAL / 100)
    assert found.keys() == named("watcher", *client_ids)
    assert most < 0.1 * len(found)


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$SYS/broker/penstock/#", "$SYS/broker/+/#"])
def test_a_filter_that_does_not_name_the_level_makes_nothing(topic_filter: str) -> None:
    """Tools that watch all of $SYS do not cost thousands of documents nobody reads."""
    broker, watcher = broker_of("dev7")
    watcher.subscribe(topic_filter)
    broker.advance(3 * INTERVAL)
    assert documents(watcher) == {}


def test_what_others_ask_for_goes_to_every_filter_that_matches() -> None:
    """What is published reaches whoever has subscribed to it, as every message."""
    broker, watcher = broker_of("dev7", "dev8")
    other = broker.connect("other")
    other.subscribe("$SYS/#")
    watcher.subscribe(f"{ROOT}/dev7/link")
    broker.advance(INTERVAL)
    assert "dev7/link" in {one.topic.removeprefix(f"{ROOT}/") for one in other.take_all(Publish)}


def test_members_of_a_share_take_turns() -> None:
    """A shared subscription asks for documents as any other does."""
    broker, watcher = broker_of("dev7", "dev8")
    watcher.subscribe(f"$share/watchers/{ROOT}/+/ledger")
    broker.advance(1.9 * INTERVAL)
    assert documents(watcher).keys() == {f"{one}/ledger" for one in ("dev7", "dev8", "watcher")}


@pytest.mark.parametrize(
    ("client_id", "level"),
    [
        ("dev7", "dev7"),
        ("a/b", "a%2Fb"),
        ("+", "%2B"),
        ("#", "%23"),
        ("50%", "50%25"),
        ("a%2Fb", "a%252Fb"),
        ("$x ä€😀:1", "$x ä€😀:1"),
    ],
)
def test_an_id_that_no_level_could_be_is_escaped(client_id: str, level: str) -> None:
    """Only what would be another level or a wildcard, and the sign of the escape itself."""
    broker, watcher = broker_of(client_id)
    watcher.subscribe(f"{ROOT}/{level}/link")
    broker.advance(0)
    (packet,) = watcher.take_all(Publish)
    assert packet.topic == f"{ROOT}/{level}/link"
    validate_topic(packet.topic)


def test_an_id_too_long_for_a_topic_has_none() -> None:
    """[MQTT-4.7.3-3]: a topic has 65,535 bytes at most; the HTTP API has no such limit."""
    broker, watcher = broker_of("x" * 65_520, "/" * 30_000)
    watcher.subscribe(f"{ROOT}/#")
    broker.advance(2 * INTERVAL - 1)
    assert documents(watcher).keys() == named("watcher")


def test_clients_that_are_not_there_have_no_documents() -> None:
    """One that is named before it connects is told from the next interval on."""
    broker, watcher = broker_of()
    watcher.subscribe(f"{ROOT}/dev7/link")
    broker.advance(INTERVAL)
    assert documents(watcher) == {}
    broker.connect("dev7")
    broker.advance(INTERVAL)
    assert documents(watcher).keys() == {"dev7/link"}


def test_names_of_clients_that_are_not_there_are_not_kept() -> None:
    """Whoever makes up names faster than they are looked up does not fill the memory."""
    broker, watcher = broker_of()
    n_timers = len(broker.core.timers)
    names = [SubscriptionRequest(f"{ROOT}/made-up-{n}/link") for n in range(100)]
    watcher.send(Subscribe(1, tuple(names)), Unsubscribe(2, tuple(n.topic_filter for n in names)))
    assert len(broker.core.timers) == n_timers


def test_a_subscribe_of_very_many_clients_is_answered_a_few_at_a_time() -> None:
    """Each document is made in some turn after the SUBACK, none of them within it."""
    client_ids = [f"dev{n}" for n in range(50)]
    broker, watcher = broker_of(*client_ids)
    for client_id in client_ids:
        watcher.subscribe(f"{ROOT}/{client_id}/link")
    assert documents(watcher) == {}
    broker.core.timers.run(broker.now)
    broker.settle()
    assert 0 < len(documents(watcher)) < 20
    broker.advance(0)
    assert len(documents(watcher)) > 30


def test_who_may_not_receive_a_topic_does_not() -> None:
    """Access control is asked for each of these topics, as for any other of $SYS."""

    class Access(AccessControl):
        checks_publish = checks_subscribe = False
        checks_receive = True

        def authenticate(self, _: object) -> bool:
            return True

        def authorize(self, session: SessionView, topic: str, action: Action) -> bool:
            assert action is RECEIVE
            return session.client_id != "watcher" or topic.endswith("/ledger")

    broker, watcher = broker_of("dev7", access=Access())
    watcher.subscribe(f"{ROOT}/dev7/#")
    broker.advance(0)
    assert documents(watcher).keys() == {"dev7/ledger"}


def test_no_plan_is_kept_for_a_topic_of_a_client() -> None:
    """10,000 clients would crowd out the plans of those who publish."""
    broker, watcher = broker_of("dev7")
    watcher.subscribe(f"{ROOT}/#")
    broker.advance(1.9 * INTERVAL)
    assert documents(watcher)
    assert not [topic for topic in broker.core.tree.plans if topic.startswith(ROOT.encode())]


@pytest.mark.parametrize("is_all", [True, False])
def test_a_document_that_cannot_be_made_does_not_stop_those_that_follow(
    monkeypatch: pytest.MonkeyPatch, *, is_all: bool
) -> None:
    """Neither other clients' nor its own at the next interval; it is counted."""
    broker, watcher = broker_of("dev7", "dev8")
    is_failing = True

    def link(session: Any, now: float) -> Any:
        if is_failing and session.client_id == "dev7":
            raise OSError(24, "Too many open files")
        return DOCUMENTS["ledger"](session, now)

    monkeypatch.setitem(DOCUMENTS, "link", link)
    filters = [f"{ROOT}/#"] if is_all else [f"{ROOT}/dev7/#", f"{ROOT}/dev8/#"]
    for topic_filter in filters:
        watcher.subscribe(topic_filter)
    broker.advance(1.5 * INTERVAL)
    found = documents_seen(watcher)
    assert "dev7/link" not in found
    assert named("dev8") <= found
    assert broker.core.counters.faults["$SYS of clients"]
    is_failing = False
    broker.advance(INTERVAL)
    assert named("dev7", "dev8") <= documents_seen(watcher)


def documents_seen(client: VirtualClient) -> set[str]:
    """Take what has come; return its topics below `ROOT`."""
    return {one.topic.removeprefix(f"{ROOT}/") for one in client.take_all(Publish)}
