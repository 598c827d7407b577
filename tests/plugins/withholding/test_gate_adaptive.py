"""The default policy on the real core and a virtual clock, with what the core tells its gate."""

from __future__ import annotations

import logging

import pytest

from penstock.broker.client_report import PassageFigures
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.held_machine import FOR_EVER
from tests.helpers.virtual import VirtualBroker, VirtualClient

CALM, BAD = 0.1, 2.0
PICTURE = b"x" * 1_000_000


class Path:
    """A broker with the default policy, one subscriber, and what the test makes of its path.

    The broker has no time but this one's; each reading crosses the path before the next is sent.
    """

    def __init__(self, *, qos: int = 1) -> None:
        self.gate = WithholdingGate(WithholdingConfig())
        sampler = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
        self.broker = VirtualBroker(gate=self.gate, samplers=[sampler])
        self.publisher = self.broker.connect("sensor")
        self.subscriber = self.connect()
        self.subscriber.subscribe("#", qos=qos)

    def connect(self) -> VirtualClient:
        """Let the subscriber come, or come back."""
        self.subscriber = self.broker.connect("site-7", clean_start=False, properties=FOR_EVER)
        return self.subscriber

    def readings(self, seconds: float, rtt: float) -> None:
        """For so long, publish small messages that are acknowledged an RTT later."""
        ends_at = self.broker.now + seconds
        while self.broker.now < ends_at - 0.001:
            self.publisher.publish("reading", b"21.5", qos=1)
            self.broker.advance(rtt)
            assert b"21.5" in self.subscriber.acknowledge()
            self.broker.advance(max(0.0, 1.0 - rtt))

    def publish_pictures(self, n_pictures: int, *, qos: int = 1) -> None:
        """Publish large messages, each on a topic of its own."""
        for number in range(n_pictures):
            self.publisher.publish(f"picture/{number}", PICTURE, qos=qos, packet_id=number + 1)
            if qos == 2:
                self.publisher.send(PubRel(number + 1))

    def take_pictures(self) -> list[int]:
        """Take the packets that have come, and return the packet ids of pictures."""
        return [p.packet_id for p in self.subscriber.take_all(Publish) if p.payload == PICTURE]

    @property
    def passage(self) -> PassageFigures:
        """What the gate knows, by the session's own link."""
        found = self.gate.passage(self.broker.session("site-7").link, self.broker.now)
        assert found is not None
        return found


def test_pictures_go_one_at_a_time_until_one_has_shown_what_they_take() -> None:
    """The next one leaves with the acknowledgement of the first; then both at once."""
    path = Path()
    path.readings(3.0, CALM)
    path.publish_pictures(2)
    [first] = path.take_pictures()
    assert path.passage.on_way_bytes == len(PICTURE)
    path.broker.advance(0.6)
    assert path.take_pictures() == []
    path.subscriber.send(PubAck(first))
    [second] = path.take_pictures()
    path.broker.advance(0.6)
    path.subscriber.send(PubAck(second))
    path.publish_pictures(3)
    assert len(path.take_pictures()) == 3


def test_a_slow_picture_is_followed_by_a_pause() -> None:
    """Small messages find a free link meanwhile, whatever the RTT says of it."""
    path = Path()
    path.readings(3.0, CALM)
    path.publish_pictures(2)
    [first] = path.take_pictures()
    path.broker.advance(4.1)
    path.subscriber.send(PubAck(first))
    path.readings(3.0, CALM)
    assert path.take_pictures() == []
    path.broker.advance(1.1)
    assert len(path.take_pictures()) == 1


def test_pictures_wait_while_the_path_is_bad_and_go_when_it_is_good() -> None:
    """What they would take is not known, and is not tried out."""
    path = Path()
    path.readings(3.0, CALM)
    path.readings(4.0, BAD)
    path.publish_pictures(1)
    path.readings(6.0, BAD)
    assert path.take_pictures() == []
    path.readings(2.0, CALM)
    assert path.passage.on_way_bytes == len(PICTURE)


def test_picture_to_a_silent_subscriber_goes_in_the_end() -> None:
    """A packet without answer holds it; no answer holds it for ever."""
    path = Path()
    path.readings(3.0, CALM)
    path.publisher.publish("reading", b"21.5", qos=1)
    path.broker.advance(3.0)
    path.publish_pictures(1)
    assert path.take_pictures() == []
    path.broker.advance(19.9)
    assert path.take_pictures() == []
    path.broker.advance(0.2)
    assert len(path.take_pictures()) == 1


def test_a_picture_of_qos_2_has_passed_with_its_pubrec() -> None:
    """Its PUBCOMP comes a round trip later, and says nothing more."""
    path = Path(qos=2)
    path.publish_pictures(2, qos=2)
    [first] = path.take_pictures()
    path.broker.advance(0.5)
    path.subscriber.send(PubRec(first))
    [second] = path.take_pictures()
    assert second != first
    assert path.passage.last_seconds == pytest.approx(0.5)
    path.broker.advance(0.5)
    path.subscriber.send(PubComp(first))
    assert path.passage.on_way_bytes == len(PICTURE)
    path.subscriber.send(PubRec(second, 0x80))
    assert path.passage.on_way_bytes == 0


def test_a_picture_that_is_sent_again_is_on_its_way_again() -> None:
    """A connection that ends takes with it what was on it; the next one begins with that."""
    path = Path()
    path.publish_pictures(2)
    assert len(path.take_pictures()) == 1
    path.broker.advance(1.0)
    path.subscriber.lose()
    path.broker.advance(1.0)
    path.connect()
    [again] = path.take_pictures()
    assert path.passage.on_way_bytes == len(PICTURE)
    path.broker.advance(0.7)
    path.subscriber.send(PubAck(again))
    assert path.passage.last_seconds == pytest.approx(0.7)
    assert len(path.take_pictures()) == 1


def test_pictures_of_qos_0_are_not_waited_for() -> None:
    """Nothing acknowledges them."""
    path = Path(qos=0)
    path.publish_pictures(3, qos=0)
    assert path.subscriber.payloads() == [PICTURE] * 3


def test_what_is_known_ends_with_the_session() -> None:
    """The broker forgets the link, and the gate with it."""
    path = Path()
    path.readings(3.0, CALM)
    link = path.broker.session("site-7").link
    assert list(path.gate.passages) == [link]
    path.broker.connect("site-7", clean_start=True)
    assert link not in path.gate.passages


def test_a_client_report_has_what_the_gate_knows() -> None:
    """As `penstock why` tells it."""
    path = Path()
    path.publish_pictures(1)
    path.broker.advance(0.25)
    session = path.broker.session("site-7")
    assert session.outbox.rules.passage(session.link, path.broker.now) == path.passage
    assert path.passage == (None, None, None, 0.0, len(PICTURE), 0.25)
