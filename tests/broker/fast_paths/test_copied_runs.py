"""Whole packets in chunks, however these are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.fast_paths import copied_runs
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.data_types import write_variable_byte_integer
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions.broker_state import Core
from tests.helpers.effort import examples
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker

FRAMES = st.builds(
    lambda form, payload, packet_id: (form, payload, packet_id),
    st.sampled_from((0x30, 0x30, 0x32, 0x31, 0x38, 0x3A, 0x34, 0x36)),
    st.binary(max_size=140),
    st.sampled_from((1, 1, 300, 0)),
)
MUTATIONS = st.lists(
    st.sampled_from(("cut", "cut length", "long length", "byte", "properties")), max_size=2
)


def a_frame(
    version: int, form: tuple[int, bytes, int], mutations: list[str], draw: Callable[[int], int]
) -> bytes:
    """Return a PUBLISH of topic ``t/0``, whole or spoilt; its bytes make up one frame."""
    first_byte, payload, packet_id = form
    body = bytearray(b"\0\x03t/0")
    if first_byte & 0x06:
        body += packet_id.to_bytes(2)
    if version == 5:
        body += b"\0" if "properties" not in mutations else b"\x02\x01\x01"
    body += payload
    if "cut" in mutations:
        del body[draw(len(body)) :]
    if "byte" in mutations and body:
        body[draw(min(9, len(body)))] = draw(256)
    n_bytes = len(body)
    length = write_variable_byte_integer(n_bytes)
    if "long length" in mutations:
        length = length[:-1] + bytes((length[-1] | 0x80, 0))
    frame = bytes((first_byte,)) + length + body
    return frame[:-1] if "cut length" in mutations and len(frame) > 2 else frame


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_alone", [True, False])
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_a_publish_is_read_alike_on_the_short_ways_and_on_the_long_one(
    version: int, data: st.DataObject, *, is_alone: bool
) -> None:
    """The loops that read a PUBLISH themselves find what `read_publish_head` finds.

    One broker takes lone packets and runs; for the other no plan is fast, so that each packet goes
    the long way. Who subscribes gets the same bytes, and a bad packet ends both connections.
    """
    brokers = VirtualBroker(core_class=FastCore), VirtualBroker(core_class=Core)
    ends = []
    for broker in brokers:
        subscriber = broker.connect("s", version)
        subscriber.subscribe("t/0", 1)
        ends.append((broker.connect("p", version), subscriber))
        ends[-1][0].publish("t/0", b"first")
    for _ in range(3):
        form, mutations = data.draw(FRAMES), data.draw(MUTATIONS)
        frame = a_frame(version, form, mutations, lambda n: data.draw(st.integers(0, n - 1)))
        good = write_packet(Publish("t/0", b"good"), version)
        chunk = frame if is_alone else good + frame
        for publisher, _subscriber in ends:
            publisher.send_bytes(chunk)
        (publisher, subscriber), (other, other_subscriber) = ends
        assert subscriber.received == other_subscriber.received
        assert publisher.received == other.received
        assert publisher.is_lost == other.is_lost
        if publisher.is_lost:
            break
    one, two = (broker.core.counters for broker in brokers)
    assert one.peer_errors == two.peer_errors
    assert one.publish_received == two.publish_received


def test_properties_of_a_message_that_takes_the_plain_way_are_read_there_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To read them twice would cost such a message half as much again."""
    broker = VirtualBroker(core_class=FastCore, sinks=[HoldingSink("sink")])
    reader, publisher = broker.connect("s"), broker.connect("p")
    reader.subscribe("#")
    asked: list[bytes] = []
    monkeypatch.setattr(copied_runs, "may_go_on", lambda _, encoded: asked.append(encoded))
    for properties in ({"topic_alias": 1, "content_type": "a"}, {"content_type": "b"}):
        publisher.send(*[Publish("sink", b"x", properties=properties)] * 2)
    assert len(reader.payloads()) == 4
    assert asked == []
