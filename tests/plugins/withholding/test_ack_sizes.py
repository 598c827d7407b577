from __future__ import annotations

import logging

import pytest

from penstock.broker.extensions import LinkSampler, PluginContext
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from penstock.plugins.withholding.ack_sizes import AckSizes
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate, WithholdingPlugin
from penstock.plugins.withholding.learned_profile import ENOUGH_SAMPLES
from tests.helpers.virtual import VirtualBroker, VirtualClient

PICTURE = b"x" * 1_000_000


def learning(**keys: object) -> WithholdingPlugin:
    """Return the plugin with a learned profile and a fixed threshold_l of half a second."""
    context = PluginContext(logging.getLogger("penstock.withholding"), "policy.yaml", lambda: 0.0)
    keys = {"policy": "conservative", "threshold_l": 0.5, **keys}
    return WithholdingPlugin(WithholdingConfig(profile="learned", **keys), context)  # type: ignore[arg-type]


class Path:
    """A broker that learns, one subscriber, and a path of a fixed part and a rate."""

    def __init__(self, plugin: WithholdingPlugin, fixed: float, rate: float) -> None:
        assert plugin.sampler is not None
        self.gate = plugin.gate
        self.fixed, self.rate = fixed, rate
        probing = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
        self.broker = VirtualBroker(gate=self.gate, samplers=[probing, plugin.sampler])
        self.publisher = self.broker.connect("sensor")
        self.subscriber: VirtualClient = self.broker.connect("site-7")
        self.subscriber.subscribe("#", qos=1)

    @property
    def link(self) -> Link:
        """The broker's view of the path."""
        return self.broker.session("site-7").link

    def carry(self, payload: bytes) -> None:
        """Publish a message and acknowledge it when the path has carried it."""
        self.publisher.publish("reading" if len(payload) < 1000 else "picture", payload, qos=1)
        packets = self.subscriber.take_all(Publish)
        assert [packet.payload for packet in packets] == [payload]
        self.broker.advance(self.fixed + len(payload) / self.rate)
        for packet in packets:
            self.subscriber.send(PubAck(packet.packet_id))
        self.broker.advance(1.0)

    def size_ratio(self) -> float:
        """Return how much longer a picture is expected to take, as a decision says it."""
        verdict = self.gate.decide(Message("t", PICTURE, is_large=True), self.link, 0.0, 1e6)
        return float(verdict.reason.partition("size x")[2].partition(",")[0])


def test_path_is_learned_from_what_the_subscriber_acknowledges() -> None:
    """100 ms and 500 KB/s, by hand: a picture takes 2.1 s, 21 times a reading."""
    path = Path(learning(), 0.1, 500_000.0)
    path.carry(b"21.5")  # with it begins what is known of the path
    for _ in range(ENOUGH_SAMPLES):
        path.carry(b"21.5")
        assert path.size_ratio() == pytest.approx(10.0)
        path.carry(PICTURE)
    assert path.size_ratio() == pytest.approx(21.0, rel=0.01)


def test_nothing_is_learned_in_congestion() -> None:
    """What takes long then says nothing of the size."""
    path = Path(learning(threshold_l=0.05, max_withhold=0.001), 0.1, 500_000.0)
    for _ in range(2 * ENOUGH_SAMPLES):
        path.carry(b"21.5")
        path.publisher.publish("picture", PICTURE, qos=1)
        path.broker.advance(0.01)
        path.subscriber.acknowledge()
    assert path.size_ratio() == pytest.approx(10.0)


def test_each_subscriber_has_its_own() -> None:
    """What one has shown says nothing of another; it ends with the session."""
    plugin = learning()
    path = Path(plugin, 0.1, 500_000.0)
    for _ in range(ENOUGH_SAMPLES):
        path.carry(b"21.5")
        path.carry(PICTURE)
    other = path.broker.connect("site-8")
    other.subscribe("other", qos=1)
    path.publisher.publish("other", b"1", qos=1)
    link = path.broker.session("site-8").link
    link.rtt_latest = 0.1
    verdict = path.gate.decide(Message("t", PICTURE, is_large=True), link, 0.0, 1e6)
    assert "size x10," in verdict.reason
    assert set(path.gate.fits) == {path.link, link}
    path.subscriber.lose()
    other.lose()
    assert not path.gate.fits


def test_path_that_is_not_known_to_be_calm_teaches_nothing() -> None:
    """Without an estimate, as without the plugin `probing`, the table holds."""
    plugin = learning()
    link = Link("c")
    sampler: LinkSampler = AckSizes(plugin.gate.fits, plugin.gate.is_calm)
    assert not plugin.gate.is_calm(link, 0.0)
    for packet_id in range(1, 41):
        size = 10 if packet_id % 2 else 1_000_000
        sampler.sent(link, packet_id, size, float(packet_id))
        assert not sampler.acknowledged(link, packet_id, packet_id + 0.5)
    assert plugin.gate.fits[link].relative(10) is None


def test_large_message_behind_unsent_bytes_is_not_timed() -> None:
    """It waits for those first."""
    plugin = learning()
    link = Link("c")
    link.rtt_latest = 0.1
    sampler = AckSizes(plugin.gate.fits, plugin.gate.is_calm)
    for unsent_bytes, n_samples in ((1, 0), (0, 1)):
        link.unsent_bytes = unsent_bytes
        sampler.sent(link, 7, 1_000_000, 0.0)
        sampler.acknowledged(link, 7, 1.0)
        assert len(plugin.gate.fits[link]._large) == n_samples


def test_overdue_packet_makes_a_path_not_calm() -> None:
    """A good estimate of before says nothing while something is unanswered for long."""
    gate = learning().gate
    link = Link("c")
    link.rtt_latest = 0.1
    assert gate.is_calm(link, 10.0)
    link.outstanding_since = 9.0
    assert not gate.is_calm(link, 10.0)


def test_run_of_messages_is_timed_by_its_first() -> None:
    """Behind a run of large ones nothing is timed before the last of them has gone."""
    plugin = learning()
    link = Link("c")
    link.rtt_latest = 0.1
    sampler = AckSizes(plugin.gate.fits, plugin.gate.is_calm)
    sampler.sent_run(link, 1, 5, 20_000, 0.0)
    assert not sampler.acknowledged_run(link, 1, 2, 1.0)
    sampler.sent(link, 9, 20_000, 1.5)
    sampler.acknowledged_run(link, 3, 7, 2.0)
    sampler.sent_run(link, 20, 5, 10, 3.0)
    sampler.acknowledged_run(link, 20, 5, 3.25)
    fit = plugin.gate.fits[link]
    assert (list(fit._large), list(fit._small)) == ([1.0], [0.25])


def test_sampler_is_there_only_where_the_profile_is_learned() -> None:
    """For a table nobody times anything."""
    context = PluginContext(logging.getLogger("penstock.withholding"), "policy.yaml", lambda: 0.0)
    assert WithholdingPlugin(WithholdingConfig(), context).sampler is None
    sampler = learning().sampler
    assert sampler is not None
    assert sampler.period is None
    assert not sampler.sample(Link("c"), -1, 0.0)


def test_acknowledgement_of_nothing_is_taken() -> None:
    """A client may acknowledge what was never told of, or after it was forgotten."""
    gate = WithholdingGate(WithholdingConfig())
    sampler, link = AckSizes(gate.fits, gate.is_calm), Link("c")
    assert not sampler.acknowledged(link, 1, 0.0)
    assert not sampler.acknowledged_run(link, 1, 5, 0.0)
    sampler.connected(link, 0.0)
    sampler.forget(link)
    gate.forget(link)
