"""Large messages of shared subscriptions go to members from which they are not withheld."""

from __future__ import annotations

from penstock.broker.extensions import Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.sessions.redelivery import ASKED_AGAIN
from tests.helpers.shares import Closed, check_books, member
from tests.helpers.virtual import VirtualBroker


def test_a_withheld_message_goes_to_a_member_that_may_have_it() -> None:
    """A large message that is withheld from one member is not withheld from an idle one."""
    broker = VirtualBroker(gate=Closed("held"))
    held = member(broker, "held")
    broker.connect("p").publish("jobs", b"x" * 20, qos=1)
    assert held.payloads() == []
    assert member(broker, "free").payloads() == [b"x" * 20]
    check_books(broker)


def test_a_large_message_is_given_to_a_member_that_may_have_it_now() -> None:
    """An idle member with a good path gets it, whosever turn it is; where none has, it waits."""
    gate = Closed("held")
    broker = VirtualBroker(gate=gate)
    held, free = member(broker, "held"), member(broker, "free")
    publisher = broker.connect("p")
    for number in range(3):
        publisher.publish("jobs", b"%d" % number * 20, qos=1, packet_id=number + 1)
        assert free.acknowledge() == [b"%d" % number * 20]
    publisher.publish("jobs", b"small", qos=1)
    assert held.acknowledge() == [b"small"]
    assert held.session.ledger.withheld_total == 0
    gate.held = ("held", "free")
    free.connection.pause_sending(broker.now)
    publisher.publish("jobs", b"x" * 20, qos=1)
    assert held.session.outbox.n_withheld == 1
    free.connection.resume_sending(broker.now)
    free.session.link_changed()
    broker.settle()
    assert free.payloads() == []
    gate.held = ("held",)
    free.session.link_changed()  # its path has become good; it has nothing else to do
    broker.settle()
    assert free.acknowledge() == [b"x" * 20]
    check_books(broker)


class Counting(Closed):
    """Such a gate that keeps what it was asked: (client, payload, sojourn)."""

    def __init__(self, *client_ids: str) -> None:
        super().__init__(*client_ids)
        self.asked: list[tuple[str, bytes, float]] = []

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Note the question, and answer."""
        self.asked.append((link.client_id, message.read_payload(), sojourn))
        return super().decide(message, link, sojourn, now)


def test_of_many_that_withhold_few_are_asked_at_a_time() -> None:
    """All of a thousand would take 16 ms with each acknowledgement; a good path gets from each."""
    names = [f"m{number}" for number in range(5 * ASKED_AGAIN)]
    gate = Counting(*names, "idle")
    broker = VirtualBroker(gate=gate)
    for name in names:
        member(broker, name)
    idle = member(broker, "idle")
    idle.subscribe("other", 1)
    idle.connection.pause_sending(broker.now)
    publisher = broker.connect("p")
    payloads = [b"%20d" % number for number in range(len(names))]
    for number, payload in enumerate(payloads):
        publisher.publish("jobs", payload, qos=1, packet_id=number + 1)
    idle.connection.resume_sending(broker.now)
    broker.settle()
    seen = set()
    for number in range(len(names) // ASKED_AGAIN):
        gate.asked.clear()
        publisher.publish("other", b"small", qos=1, packet_id=number + 1)
        assert idle.acknowledge() == [b"small"]
        assert 0 < len(gate.asked) <= ASKED_AGAIN
        seen |= {payload for _, payload, _ in gate.asked}
    assert seen == set(payloads)
    gate.held = tuple(names)
    idle.session.link_changed()
    broker.settle()
    assert sorted(idle.payloads()) == payloads
    check_books(broker)


def test_a_large_message_that_cannot_leave_at_once_does_not_begin_its_wait_anew() -> None:
    """One goes to the other member, the oldest; the next stays where it has waited so long."""

    class OneAtATime(Counting):
        """Holds, too, what comes while something is inflight to the other member."""

        def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
            """Answer by what is inflight."""
            verdict = super().decide(message, link, sojourn, now)
            is_busy = link.client_id == "other" and len(broker.session("other").inflight) > 0
            return Verdict(deliver=False, reason="busy") if is_busy else verdict

    gate = OneAtATime("held")
    broker = VirtualBroker(gate=gate)
    held = member(broker, "held")
    publisher = broker.connect("p")
    payloads = [b"%20d" % number for number in range(3)]
    for number, payload in enumerate(payloads):
        publisher.publish("jobs", payload, qos=1, packet_id=number + 1)
    broker.advance(5)
    other = member(broker, "other")
    assert other.payloads() == payloads[:1]
    assert held.session.outbox.n_messages == 2
    gate.held = ()
    gate.asked.clear()
    held.session.link_changed()
    broker.settle()
    assert held.payloads() == payloads[1:]
    assert ("held", payloads[1], 5.0) in gate.asked
    check_books(broker)


def test_what_a_stuck_member_has_goes_to_one_whose_path_has_become_good() -> None:
    """Not only what is withheld: also what waits for room."""
    gate = Closed("idle")
    broker = VirtualBroker(gate=gate)
    stuck, idle = member(broker, "stuck"), member(broker, "idle")
    stuck.connection.pause_sending(broker.now)
    idle.connection.pause_sending(broker.now)
    broker.connect("p").publish("jobs", b"x" * 20, qos=1)
    assert stuck.session.outbox.n_messages == 1
    idle.connection.resume_sending(broker.now)
    broker.settle()
    assert idle.payloads() == []
    gate.held = ()
    idle.session.link_changed()
    broker.settle()
    assert idle.payloads() == [b"x" * 20]
    check_books(broker)


def test_members_do_not_take_withheld_messages_from_each_other_for_ever() -> None:
    """Each has a withheld message, so neither has nothing to do: the broker comes to rest."""
    broker = VirtualBroker(gate=Closed("a", "b"))
    a, b = member(broker, "a"), member(broker, "b")
    for client in (a, b):
        client.subscribe("own/#", 1)
    publisher = broker.connect("p")
    publisher.publish("own/1", b"x" * 20)
    for number in range(3):
        publisher.publish("jobs", b"x" * 20, qos=1, packet_id=number + 1)
    for client in (a, b):
        client.connection.resume_sending(broker.now)
    broker.settle()
    held = sum(client.session.outbox.n_messages for client in (a, b))
    assert held == 5
    assert broker.core.ledger().moved == 0
    check_books(broker)
