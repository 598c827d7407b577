from __future__ import annotations

import logging

import pytest

from penstock.broker.link import TcpLook
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

CALM, BAD = 0.1, 2.0
PICTURE = b"x" * 1_000_000


class Path:
    """A broker that learns, one subscriber, and a path of which the test says how slow it is.

    The broker has no time but this one's; each reading crosses the path before the next is sent.

    Attributes:
        lost: of ten segments a second, those that the kernel has sent again in congestion; None
            where it is not asked.
    """

    def __init__(self, lost: int | None = None) -> None:
        self.lost = lost
        self._segments = self._retransmissions = 0
        self.gate = WithholdingGate(WithholdingConfig(policy="adaptive"))
        sampler = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
        self.broker = VirtualBroker(gate=self.gate, samplers=[sampler])
        self.publisher = self.broker.connect("sensor")
        self.subscriber: VirtualClient = self.broker.connect("site-7")
        self.subscriber.subscribe("#", qos=1)

    def readings(self, seconds: float, rtt: float) -> None:
        """For so long, publish small messages that are acknowledged an RTT later."""
        ends_at = self.broker.now + seconds
        while self.broker.now < ends_at - 0.001:
            self.publisher.publish("reading", b"21.5", qos=1)
            self.broker.advance(rtt)
            self._look(rtt)
            assert b"21.5" in self.subscriber.acknowledge()
            self.broker.advance(max(0.0, 1.0 - rtt))

    def _look(self, rtt: float) -> None:
        if self.lost is not None:
            link = self.broker.session("site-7").link
            link.small_messages += 1
            tcp = link.tcp = TcpLook(self.broker.now, congestion_control="cubic")
            tcp.rtt, tcp.rttvar = rtt, rtt / 4
            self._segments += 10
            self._retransmissions += self.lost if rtt > CALM else 0
            tcp.segments, tcp.retransmissions = self._segments, self._retransmissions

    def learn(self, n_congestions: int, seconds: float) -> None:
        """Let the subscriber have congestion of always the same length."""
        for _ in range(n_congestions):
            self.readings(20.0, CALM)
            self.readings(seconds, BAD)
        self.readings(20.0, CALM)

    def wait_for_picture(self, seconds: float) -> float:
        """Publish a large message and return how long it was withheld, at most `seconds`."""
        self.publisher.publish("picture", PICTURE)
        began_at = self.broker.now
        while PICTURE not in self.subscriber.acknowledge():
            assert self.broker.now - began_at < seconds
            self.broker.advance(0.1)
        return self.broker.now - began_at


def test_picture_waits_for_the_end_of_what_has_always_been_short() -> None:
    """Congestion of 6 s each time; a picture that comes 2 s into it waits for most of the rest."""
    path = Path()
    path.learn(15, 6.0)
    path.readings(2.0, BAD)
    assert 2.0 <= path.wait_for_picture(20.0) <= 7.0


def test_picture_is_not_held_where_congestion_has_always_been_long() -> None:
    """The same two seconds on a path whose congestion takes two minutes: at once."""
    path = Path()
    path.learn(15, 120.0)
    path.readings(2.0, BAD)
    assert path.wait_for_picture(1.0) == 0.0


def test_gate_learns_while_nothing_waits() -> None:
    """No picture was ever sent, and the lengths of congestion are known."""
    path = Path()
    path.learn(5, 6.0)
    link = path.broker.session("site-7").link
    own = list(path.gate.histories[link].lengths)
    assert sum(length == pytest.approx(7.0, abs=1.0) for length in own) >= 5


def test_history_ends_with_the_session() -> None:
    """The broker forgets the link, and the gate with it."""
    path = Path()
    path.readings(3.0, CALM)
    link = path.broker.session("site-7").link
    assert list(path.gate.histories) == [link]
    path.subscriber.lose()
    assert not path.gate.histories


def test_picture_to_a_silent_subscriber_goes_in_the_end() -> None:
    """A packet without answer holds it; no answer holds it for ever."""
    path = Path()
    path.learn(3, 6.0)
    path.publisher.publish("reading", b"21.5", qos=1)
    path.broker.advance(3.0)
    path.publisher.publish("picture", PICTURE)
    assert PICTURE not in path.subscriber.payloads()
    path.broker.advance(60.0)
    assert PICTURE in path.subscriber.payloads()


def test_what_the_kernel_says_of_losses_holds_a_picture() -> None:
    """The RTT rises to 0.4 s and no more; with losses a picture would take minutes, not seconds."""
    holds = []
    for lost in (0, 2):
        path = Path(lost=lost)
        for _ in range(8):
            path.readings(20.0, CALM)
            path.readings(6.0, 0.4)
        path.readings(20.0, CALM)
        path.readings(2.0, 0.4)
        path.publisher.publish("picture", PICTURE)
        holds.append(PICTURE not in path.subscriber.payloads())
    assert holds == [False, True]
