"""What a disk that refuses costs an uplink that is away, and who waits for the disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.durable.database import SessionDatabase
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, Publish, PubRec, Will
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.lane_order import join_lanes
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.lanes import lane_of
from tests.helpers.durable import DurableBroker, keep, subscribed
from tests.helpers.virtual import VirtualClient


def uplinks(
    broker: DurableBroker, client_id: str = "s", topic_filter: str = "t/#", window: int = 100
) -> VirtualClient:
    """Return a subscriber that has limits of its own, as an uplink's client has."""
    options = keep()
    options["properties"]["receive_maximum"] = window
    client = broker.connect(client_id, **options)
    client.subscribe(topic_filter, 2)
    limit(broker, client)
    return client


def limit(broker: DurableBroker, client: VirtualClient, *, drops_oldest: bool = True) -> None:
    """Give a client limits of its own."""
    rules = broker.core.outbox_rules
    client.session.outbox.rules = rules.of_one(
        max_messages=100, max_bytes=1_000_000, drops_oldest=drops_oldest
    )
    broker.journal.limited(client.session)


def fill(broker: DurableBroker) -> None:
    """Let the disk be full from now on, with commits in the test's hands."""
    broker.commits_at_once = False
    broker.is_disk_full = True


def refused(broker: DurableBroker) -> None:
    """Try to write what has changed, or what was refused before."""
    broker.seal()
    assert not broker.write()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_disk_refuses_is_dropped_for_an_uplink_that_is_away(qos: int) -> None:
    """Its publishers are answered, and other clients get the messages; what was stored stays."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    publisher, near = broker.connect("p"), broker.connect("near")
    near.subscribe("t/#", 0)
    publisher.publish("t/1", b"stored", qos=1)
    publisher.take(PubAck)
    fill(broker)
    kind: type[PubAck | PubRec] = PubAck if qos == 1 else PubRec
    for packet_id in (1, 2):  # one in the batch, one behind it
        publisher.publish("t/1", b"dropped", qos=qos, packet_id=packet_id)
        broker.seal()
    assert not broker.write()
    publisher.publish("t/1", b"dropped", qos=qos, packet_id=3)
    assert [packet.reason_code for packet in publisher.take_all(kind)] == [0, 0, 0]
    assert client.session.ledger.dropped == {"not_stored": 3}
    assert near.payloads() == [b"stored", *[b"dropped"] * 3]
    broker.is_disk_full = False
    broker.commit()
    publisher.publish("t/1", b"later", qos=1, packet_id=4)
    broker.commit()
    publisher.take(PubAck)
    assert broker.crash().connect("s", **keep()).payloads() == [b"stored", b"later"]


def test_who_waits_for_another_session_waits_for_the_disk() -> None:
    """What a client that is no uplink's is to get is refused while the disk refuses."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    other = broker.connect("other", **keep())
    other.subscribe("t/both", 1)
    other.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/both", b"x", qos=1, packet_id=1)
    publisher.publish("t/1", b"x", qos=1, packet_id=2)
    refused(broker)
    assert not publisher.inbox
    assert not client.session.ledger.dropped
    publisher.publish("t/both", b"x", qos=1, packet_id=3)
    broker.is_disk_full = False
    broker.commit()
    codes = [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert codes == [0, 0, 0x97]
    assert broker.crash().connect("s", **keep()).payloads() == [b"x", b"x"]


def test_a_removed_retained_message_is_acknowledged_when_the_disk_has_it_no_more() -> None:
    """The refused batch has nothing to store, and yet its publisher waits for it."""
    broker = DurableBroker()
    publisher = broker.connect("p")
    publisher.publish("r/1", b"old", qos=1, retain=True)
    publisher.take(PubAck)
    fill(broker)
    publisher.publish("r/1", b"", qos=1, retain=True, packet_id=2)
    refused(broker)
    assert not publisher.inbox
    broker.is_disk_full = False
    broker.commit()
    publisher.take(PubAck)


@pytest.mark.parametrize("kind", ["incoming", "retained", "gone_retained"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_what_waits_for_an_uplink_is_kept_while_its_publishers_wait(
    kind: str, *, is_behind: bool
) -> None:
    """Something else of the same commit needs the disk; they are answered when it is there."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    publisher = broker.connect("p", **keep())
    publisher.publish("r/1", b"old", qos=0, retain=True)
    near = broker.connect("near")
    fill(broker)
    if is_behind:
        near.publish("t/0", b"dropped", qos=1)
        broker.seal()
    near.publish("t/1", b"kept", qos=1, packet_id=2)
    if kind == "incoming":
        publisher.publish("t/2", b"last", qos=2)
    else:
        publisher.publish("r/1", b"new" if kind == "retained" else b"", qos=1, retain=True)
    refused(broker)
    refused(broker)
    assert len(near.take_all(PubAck)) == is_behind
    assert not publisher.inbox
    assert client.session.ledger.dropped == ({"not_stored": 1} if is_behind else {})
    broker.is_disk_full = False
    broker.commit()
    near.take(PubAck)
    publisher.take(PubRec if kind == "incoming" else PubAck)
    found = broker.crash().connect("s", **keep()).payloads()
    assert found == ([b"kept", b"last"] if kind == "incoming" else [b"kept"])


def test_who_waits_for_another_session_behind_the_refused_batch_waits_for_the_disk() -> None:
    """Those of the batch itself are answered: they wait for the uplink's messages alone."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    other = broker.connect("other", **keep())
    other.subscribe("t/both", 1)
    other.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"dropped", qos=1, packet_id=1)
    broker.seal()
    publisher.publish("t/both", b"kept", qos=1, packet_id=2)
    refused(broker)
    refused(broker)
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [1]
    assert client.session.ledger.dropped == {"not_stored": 1}
    broker.is_disk_full = False
    broker.commit()
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [2]
    assert broker.crash().connect("s", **keep()).payloads() == [b"kept"]


def test_publishers_are_answered_when_the_last_of_two_uplinks_has_gone() -> None:
    """Until then both keep the message: it is dropped for both in the same attempt."""
    broker = DurableBroker()
    one, other = uplinks(broker, "one"), uplinks(broker, "other", window=1)
    one.lose()
    publisher = broker.connect("p")
    publisher.publish("t/1", b"inflight", qos=1)
    publisher.take(PubAck)
    fill(broker)
    publisher.publish("t/1", b"x", qos=1, packet_id=2)
    refused(broker)
    assert not publisher.inbox
    assert not one.session.ledger.dropped
    other.lose()
    refused(broker)
    publisher.take(PubAck)
    assert one.session.ledger.dropped == other.session.ledger.dropped == {"not_stored": 1}
    refused(broker)


def test_what_was_sent_to_an_uplink_is_kept_when_it_has_gone() -> None:
    """The cloud's broker may have it, and its packet identifier is in use."""
    broker = DurableBroker()
    one, other = uplinks(broker, "one"), uplinks(broker, "other")
    one.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    other.lose()
    refused(broker)
    assert not publisher.inbox
    assert not one.session.ledger.dropped


def test_what_has_moved_to_the_other_lane_is_kept() -> None:
    """It is safe neither there nor on the disk."""
    broker = DurableBroker()
    client = uplinks(broker, "third")
    lane, other = uplinks(broker, "lane"), uplinks(broker, "other", "u/#")
    client.lose()
    lane.lose()
    join_lanes(*(lane_of(each.session, broker.core.timers) for each in (lane, other)))
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    broker.seal()
    order = lane.session.outbox.order
    assert order is not None
    order.take_over(is_away=True)
    broker.advance(1)
    assert other.payloads() == [b"x"]
    refused(broker)
    assert not publisher.inbox
    assert not client.session.ledger.dropped


def test_publishers_are_answered_when_an_uplink_has_ended() -> None:
    """What waited for it has ended with it, and needs no disk."""
    broker = DurableBroker()
    one, other = uplinks(broker, "one"), uplinks(broker, "other")
    one.lose()
    other.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    broker.seal()
    broker.core.sessions.end(other.session, broker.now)
    refused(broker)
    publisher.take(PubAck)
    assert one.session.ledger.dropped == {"not_stored": 1}
    broker.is_disk_full = False
    broker.commit()
    assert not broker.disk.deliveries


def test_publishers_are_answered_when_another_client_has_the_message() -> None:
    """What a client has acknowledged since the batch was made needs no disk."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    near = broker.connect("near", **keep())
    near.subscribe("t/#", 1)
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    refused(broker)
    assert not publisher.inbox
    near.send(PubAck(near.take(Publish).packet_id))
    refused(broker)
    publisher.take(PubAck)
    assert client.session.ledger.dropped == {"not_stored": 1}
    broker.is_disk_full = False
    broker.commit()
    assert not broker.disk.deliveries


def test_an_uplinks_backlog_is_searched_once_while_the_disk_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have 100,000 messages, and an attempt is made each second."""
    searched = []
    take_where = Outbox.take_where

    def counted(outbox: Outbox, *args: Any) -> list[Delivery]:
        searched.append(outbox)
        return take_where(outbox, *args)

    monkeypatch.setattr(Outbox, "take_where", counted)
    broker = DurableBroker()
    client = uplinks(broker)
    near = broker.connect("near", **keep())
    near.subscribe("t/#", 1)
    client.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    refused(broker)
    refused(broker)
    assert not searched
    near.send(PubAck(near.take(Publish).packet_id))
    for _ in range(3):
        refused(broker)
    assert searched == [client.session.outbox]


def test_a_message_that_no_publisher_waits_for_is_kept_for_an_uplink() -> None:
    """The disk has it when it has room."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    broker.connect("w", will=Will("t/will", b"kept", qos=1)).lose()
    publisher = broker.connect("p")
    dying = broker.connect("v", will=Will("t/will", b"kept, too", qos=1))
    fill(broker)
    dying.lose()
    refused(broker)
    publisher.publish("t/1", b"dropped", qos=1)
    publisher.take(PubAck)
    refused(broker)
    assert client.session.ledger.dropped == {"not_stored": 1}
    broker.is_disk_full = False
    broker.commit()
    assert broker.crash().connect("s", **keep()).payloads() == [b"kept", b"kept, too"]


def test_a_message_behind_the_refused_batch_that_no_publisher_waits_for_is_kept() -> None:
    """Dropping the messages of the batch makes no room for the one behind it."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    dying = broker.connect("v", will=Will("t/will", b"kept", qos=1))
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"dropped", qos=1)
    broker.seal()
    dying.lose()
    refused(broker)
    publisher.take(PubAck)
    broker.is_disk_full = False
    broker.commit()
    assert broker.crash().connect("s", **keep()).payloads() == [b"kept"]


def test_what_is_stored_and_changes_behind_the_refused_batch_lets_publishers_be_answered() -> None:
    """A message that another client has received needs no disk to be safe."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    near = broker.connect("near", **keep())
    near.subscribe("n/#", 2)
    publisher = broker.connect("p")
    publisher.publish("n/1", b"stored", qos=2)
    publisher.take(PubRec)
    fill(broker)
    publisher.publish("t/1", b"dropped", qos=1, packet_id=2)
    broker.seal()
    near.send(PubRec(near.take(Publish).packet_id))
    publisher.publish("t/1", b"dropped", qos=1, packet_id=3)
    refused(broker)
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [2, 3]
    assert client.session.ledger.dropped == {"not_stored": 2}


def test_an_uplink_may_get_its_limits_after_a_batch_without_messages() -> None:
    """As after a start on a full disk."""
    broker = DurableBroker()
    client = subscribed(broker)
    client.lose()
    publisher, other = broker.connect("p"), broker.connect("other", **keep())
    fill(broker)
    other.lose()
    broker.seal()
    limit(broker, client)
    publisher.publish("t/1", b"dropped", qos=1)
    refused(broker)
    publisher.take(PubAck)
    assert client.session.ledger.dropped == {"not_stored": 1}


def test_publishers_wait_while_a_share_may_have_their_message_in_another_session() -> None:
    """The member that has it now got it after the refused batch was made."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    taker = broker.connect("taker", **keep())
    taker.subscribe("$share/g/t/#", 1)
    taker.lose()
    member = broker.connect("member")
    member.subscribe("$share/g/t/#", 1)
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    broker.seal()
    member.lose()
    refused(broker)
    assert not publisher.inbox
    assert not client.session.ledger.dropped


def test_publishers_wait_where_an_uplink_gets_its_limits_after_the_batch() -> None:
    """What of the batch is its own was not noted."""
    broker = DurableBroker()
    client = subscribed(broker)
    client.lose()
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1)
    broker.seal()
    limit(broker, client)
    refused(broker)
    assert not publisher.inbox
    assert not client.session.ledger.dropped


@pytest.mark.parametrize("is_new", [False, True])
def test_a_message_of_a_share_is_not_dropped_for_an_uplink_that_is_away(*, is_new: bool) -> None:
    """It may be stored already, for a member that has left; or another member may get it."""
    broker = DurableBroker()
    client = uplinks(broker, topic_filter="$share/g/t/#")
    client.lose()
    member = broker.connect("member")
    member.subscribe("$share/g/t/#", 1)
    publisher = broker.connect("p")
    if not is_new:
        publisher.publish("t/1", b"x", qos=1)
        publisher.take(PubAck)
    fill(broker)
    if is_new:
        publisher.publish("t/1", b"x", qos=1)
        refused(broker)
        assert not publisher.inbox
    else:
        publisher.publish("r/1", b"x", retain=True)
        refused(broker)
    member.lose()
    refused(broker)
    publisher.publish("t/1", b"x", qos=1, packet_id=3)
    broker.is_disk_full = False
    broker.commit()
    assert 0x97 in [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert not client.session.ledger.dropped
    assert broker.crash().connect("s", **keep()).payloads() == [b"x"]


def test_an_uplink_that_stands_is_promised_nothing_that_the_disk_does_not_have() -> None:
    """Its messages are refused as those of others: with the answer, they would be safe nowhere."""
    broker = DurableBroker()
    uplinks(broker)
    publisher = broker.connect("p")
    fill(broker)
    publisher.publish("t/1", b"x", qos=1, packet_id=1)
    refused(broker)
    publisher.publish("t/1", b"x", qos=1, packet_id=2)
    broker.is_disk_full = False
    broker.commit()
    assert [packet.reason_code for packet in publisher.take_all(PubAck)] == [0, 0x97]


def test_what_the_disk_has_no_room_for_is_dropped_for_an_uplink_that_is_away() -> None:
    """Others are refused it; what was stored is deleted meanwhile, and smaller messages pass."""
    broker = DurableBroker()
    client = uplinks(broker)
    client.lose()
    other = broker.connect("other", **keep())
    other.subscribe("o/#", 1)
    publisher = broker.connect("p")
    broker.journal.measured(15_000)
    publisher.publish("t/1", b"x" * 8_000, qos=1, packet_id=1)
    publisher.publish("t/1", b"x" * 10_000, qos=1, packet_id=2)
    publisher.publish("o/1", b"x" * 10_000, qos=1, packet_id=3)
    publisher.publish("o/1", b"x", qos=1, packet_id=4)
    codes = [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert codes == [0, 0, 0x97, 0]
    assert client.session.ledger.dropped == {"not_stored": 1}
    assert broker.journal.is_full
    other.send(PubAck(other.take(Publish).packet_id))
    assert [row.payload for row in broker.disk.messages.values()] == [b"x" * 8_000]
    broker.journal.measured(17_000)
    assert not broker.journal.is_full
    publisher.publish("o/1", b"x" * 10_000, qos=1, packet_id=5)
    assert publisher.take(PubAck).reason_code == 0


def test_messages_that_wait_for_their_commit_take_room() -> None:
    """The disk has not got them yet."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    broker.journal.measured(15_000)
    broker.commits_at_once = False
    for packet_id in (1, 2):
        publisher.publish("t/1", b"x" * 5_000, qos=1, packet_id=packet_id)
        broker.seal()
    broker.commit()
    assert [packet.reason_code for packet in publisher.take_all(PubAck)] == [0, 0x97]


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_messages_that_are_acknowledged_while_they_are_written_take_room(
    made_of: type[Core],
) -> None:
    """Their publisher does not wait for the disk, which has not got them yet."""
    broker = DurableBroker(core_class=made_of)
    subscriber = subscribed(broker)
    publisher = broker.connect("p")
    broker.journal.measured(15_000)
    broker.commits_at_once = False
    publisher.publish("t/1", b"x" * 5_000, qos=1, packet_id=1)
    broker.seal()
    subscriber.send(PubAck(subscriber.take(Publish).packet_id))
    assert publisher.take(PubAck).reason_code == 0
    publisher.publish("t/1", b"x" * 5_000, qos=1, packet_id=2)
    broker.commit()
    assert publisher.take(PubAck).reason_code == 0x97


@pytest.mark.parametrize("drops_oldest", [True, False])
def test_what_has_waited_longest_makes_room_on_the_disk(*, drops_oldest: bool) -> None:
    """Once, until there is room: where the disk is full of other files, it would not help."""
    broker = DurableBroker()
    client = uplinks(broker)
    limit(broker, client, drops_oldest=drops_oldest)
    client.lose()
    publisher = broker.connect("p")
    for number in range(20):
        publisher.publish("t/1", b"%02d" % number * 1_000, qos=1, packet_id=1)
    steps = (20, 0, 1, 10), (21, 0, 2, 10), (22, 6_000, 2, 10), (23, 0, 3, 15)
    for number, room, n_new, n_old in steps:
        broker.journal.measured(room)
        publisher.publish("t/1", b"%02d" % number * 1_000, qos=1, packet_id=1)
        dropped = n_new + (n_old if drops_oldest else 0)
        assert client.session.ledger.dropped == {"not_stored": dropped}
    codes = {packet.reason_code for packet in publisher.take_all(PubAck)}
    assert codes == {0}
    left = [*range(15, 20), 22] if drops_oldest else [*range(20), 22]
    stored = [row.payload for row in broker.disk.messages.values()]
    assert stored == [b"%02d" % number * 1_000 for number in left]


@pytest.mark.parametrize(("n_bytes", "n_sessions"), [(10, 1), (10, 100), (4_200, 1), (9_000, 1)])
def test_what_waits_is_counted_as_no_less_than_its_place_in_the_file(
    tmp_path: Path, n_bytes: int, n_sessions: int
) -> None:
    """Else a commit takes the space that deleting needs, and nothing is ever deleted again."""
    broker = DurableBroker()
    for number in range(n_sessions):
        broker.connect(f"s{number}", **keep()).subscribe("t/#", 1)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    for packet_id in range(1, 51):
        publisher.publish("t/1", b"x" * n_bytes, qos=1, packet_id=packet_id)
    batch = broker.seal()
    assert batch is not None
    path = tmp_path / "s.db"
    SessionDatabase(str(path), is_flushed=False).close()
    n_empty = path.stat().st_size
    with closing(SessionDatabase(str(path), is_flushed=False)) as database:
        database.write(batch)
    broker.journal.measured(path.stat().st_size - n_empty)
    publisher.publish("t/1", b"", qos=1, packet_id=51)
    broker.commit()
    codes = [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert codes == [0] * 50 + [0x97]


def test_a_retained_message_of_qos_0_is_stored_when_there_is_room() -> None:
    """Nobody can be refused it; it may be lost until then, and so is the one before it."""
    broker = DurableBroker()
    publisher = broker.connect("p")
    for topic in ("r/longer", "r/shorter", "r/gone"):
        publisher.publish(topic, b"x" * 1_000, retain=True)
    broker.journal.measured(0)
    publisher.publish("r/new", b"n" * 1_000, retain=True)
    publisher.publish("r/longer", b"n" * 1_001, retain=True)
    publisher.publish("r/shorter", b"n" * 999, retain=True)
    publisher.publish("r/gone", b"", qos=1, retain=True)
    assert publisher.take(PubAck).reason_code < 0x80
    assert broker.journal.is_full
    assert broker.journal.is_settled
    assert [row.payload for row in broker.disk.messages.values()] == [b"n" * 999]
    reader = broker.connect("c")
    reader.subscribe("r/#", 0)
    assert sorted(map(len, reader.payloads())) == [999, 1_000, 1_001]
    broker.journal.measured(500)
    assert broker.journal.is_full
    broker.journal.measured(20_000)
    assert not broker.journal.is_full
    broker.settle()
    assert set(broker.disk.retained) == {("r/new",), ("r/longer",), ("r/shorter",)}


def test_a_will_for_which_there_is_no_room_is_sent_at_qos_0() -> None:
    """It cannot be refused, and each client whose publish is refused may come again with a will."""
    broker = DurableBroker()
    subscribed(broker).lose()
    near = broker.connect("near")
    near.subscribe("t/#", 1)
    for room, n_stored in (0, 0), (10_000, 1):
        broker.journal.measured(room)
        broker.connect("c", will=Will("t/will", b"gone", qos=1, retain=True)).lose()
        assert near.take(Publish).qos == n_stored
        assert len(broker.disk.deliveries) == len(broker.disk.retained) == n_stored


def test_retained_messages_of_qos_0_refuse_nobody_while_they_wait_for_their_commit() -> None:
    """They take room on the disk, and are none of the messages that may wait for a commit."""
    broker = DurableBroker(max_pending_bytes=1_000)
    subscribed(broker)
    broker.commits_at_once = False
    publisher = broker.connect("p")
    publisher.publish("r/1", b"x" * 10_000, retain=True)
    broker.seal()
    for packet_id, room in (1, 100_000), (2, 12_000):
        broker.journal.measured(room)
        publisher.publish("t/1", b"x", qos=1, packet_id=packet_id)
    broker.commit()
    assert [packet.reason_code for packet in publisher.take_all(PubAck)] == [0, 0x97]
