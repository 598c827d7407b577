"""The relay of an uplink, by the bytes of its three connections."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.errors import PeerError
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.uplink.config import UplinkKeys
from penstock.edge_proxy.uplink.connecting import (
    RelaySettings,
    UplinkRefusedError,
    connect_cloud,
    recorded_states,
)
from penstock.edge_proxy.uplink.lanes import Lane
from penstock.edge_proxy.uplink.packet_relay import PacketRelay, UplinkCounts
from penstock.edge_proxy.uplink.packet_stream import PacketWriter
from penstock.edge_proxy.uplink.remapping import DownRule, Loops, Remapping, Rule
from penstock.edge_proxy.uplink.subscriptions import Request
from penstock.edge_proxy.uplink.suspects import End, SentItem, Suspects
from penstock.edge_proxy.upstream_config import UpstreamKeys
from tests.helpers.frames import frames_of

MARKER = "penstock/uplink/berlin-cloud"
STATE = "$SYS/broker/connection/berlin-cloud/state"
PUBLISHER = "penstock-publisher"

UP = [Rule("up/#", remote_prefix="berlin/")]
DOWN = [DownRule("down/#", remote_prefix="berlin/")]

KEYS = UplinkKeys(UpstreamKeys(address="cloud.example"), up=UP, down=DOWN)

SETTINGS: dict[str, Any] = {
    "keys": KEYS,
    "lane": Lane("", UP, DOWN),
    "up_id": "$uplink/cloud/up",
    "down_id": "$uplink/cloud/down",
    "own_prefix": "$uplink/cloud/down",
    "client_id": "berlin-cloud",
    "version": 5,
    "password": None,
    "marker_topic": MARKER,
    "state_topic": None,
    "receive_maximum": 100,
    "maximum_packet_size": 1_000_000,
}


def keys_with(**own: Any) -> UplinkKeys:
    """Return the uplink's keys, some of which are not the defaults."""
    return replace(KEYS, **own)


class Uplink:
    """A relay between a test's packets.

    Attributes:
        relay: itself.
        counts: of it.
        suspects: the same.
    """

    def __init__(self, *, old_filters: Sequence[str] = (), **settings: Any) -> None:
        keys = SETTINGS | settings
        self.version = keys["version"]
        self.counts = UplinkCounts()
        self.suspects = Suspects(lambda: 0.0)
        self.relay = PacketRelay(
            RelaySettings(**keys),
            Remapping(UP, DOWN),
            Loops("berlin", 3),
            self.counts,
            logging.getLogger("tests"),
            suspects=self.suspects,
            old_filters=old_filters,
        )

    def accept(self, *, session_present: bool = True, **properties: Any) -> None:
        """Let the cloud's broker accept the connection, and drop what was written until then."""
        self.from_cloud(ConnAck(session_present, properties=properties))
        self.written()

    def from_cloud(self, *packets: Packet) -> None:
        """Take packets of the cloud's broker."""
        for packet in packets:
            self.relay.from_cloud.receive_data(write_packet(packet, self.version))

    def from_up(self, *packets: Packet) -> None:
        """Take packets of the site's broker for the client that subscribes."""
        for packet in packets:
            self.relay.from_up.receive_data(write_packet(packet, 5))

    def from_down(self, *packets: Packet) -> None:
        """Take packets of the site's broker for the client that publishes."""
        for packet in packets:
            self.relay.from_down.receive_data(write_packet(packet, self.version))

    def written(self) -> tuple[list[Packet], list[Packet], list[Packet]]:
        """Return what was written since the last call: to the cloud, by *up* and by *down*."""
        relay = self.relay
        return (
            _packets(relay.cloud, self.version),
            _packets(relay.up, 5),
            _packets(relay.down, self.version),
        )


def _packets(writer: PacketWriter, version: int) -> list[Packet]:
    buffer = ReceiveBuffer(10_000_000)
    data = b"".join(writer.take())
    packets = [read_packet(first, body, version) for first, body in frames_of(buffer, data)]
    assert not buffer.pending_bytes
    return packets


def accepted(*, session_present: bool = True, **settings: Any) -> Uplink:
    """Return an uplink that the cloud's broker has accepted."""
    uplink = Uplink(**settings)
    uplink.accept(session_present=session_present)
    return uplink


def up_message(**fields: Any) -> Publish:
    """Return a message as the site's broker delivers it, with its publisher."""
    pairs = [*fields.pop("user", ()), (PUBLISHER, fields.pop("publisher", "sensor"))]
    values: dict[str, Any] = {"topic": "up/a", "payload": b"x", "properties": {}} | fields
    values["properties"] = {**values["properties"], "user_property": pairs}
    return Publish(**values)


def user_properties(packet: Packet) -> list[tuple[str, str]]:
    """Return the User Properties of a message."""
    assert isinstance(packet, Publish)
    return list(packet.properties.get("user_property", ()))


# -- sessions --------------------------------------------------------------------------------------


def test_the_session_in_the_cloud_is_kept_and_may_be_ended() -> None:
    """To end it, no other begins, and no will is left."""
    [connect], up, down = Uplink(state_topic=STATE).written()
    assert isinstance(connect, Connect)
    assert not connect.clean_start
    assert connect.properties == {
        "session_expiry_interval": 0xFFFFFFFF,
        "receive_maximum": 100,
        "maximum_packet_size": 1_000_000,
        "user_property": [("penstock-waits", "yes")],
    }
    assert (up, down) == ([], [])
    writer = PacketWriter()
    writer.send(connect_cloud(RelaySettings(**SETTINGS | {"state_topic": STATE}), forgets=True))
    [connect] = _packets(writer, 5)
    assert isinstance(connect, Connect)
    assert (connect.clean_start, connect.properties, connect.will) == (True, {}, None)


@pytest.mark.parametrize("session_present", [True, False])
def test_local_clients_connect_with_what_the_cloud_has_said(
    session_present: bool,  # noqa: FBT001
) -> None:
    """The client for messages that come down forgets what the cloud has forgotten."""
    uplink = Uplink(old_filters=["up/#"])
    uplink.written()
    uplink.from_cloud(ConnAck(session_present, properties={"receive_maximum": 7}))
    cloud, [connect, subscribe], [down] = uplink.written()
    assert cloud == []
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.clean_start) == ("$uplink/cloud/up", False)
    assert connect.properties["receive_maximum"] == 7
    assert isinstance(subscribe, Subscribe)
    [request] = subscribe.subscriptions
    assert (request.topic_filter, request.retain_as_published) == ("up/#", True)
    assert request.retain_handling == (2 if session_present else 0)
    assert isinstance(down, Connect)
    assert (down.client_id, down.clean_start) == ("$uplink/cloud/down", not session_present)


def test_what_is_retained_goes_up_for_a_filter_that_is_new() -> None:
    """The cloud has not seen it, though it has the session."""
    uplink = Uplink(old_filters=["other/#"])
    uplink.from_cloud(ConnAck(session_present=True))
    _, [_, subscribe], _ = uplink.written()
    assert isinstance(subscribe, Subscribe)
    assert subscribe.subscriptions[0].retain_handling == 0


def test_the_state_is_told_on_both_sides() -> None:
    """Retained: 1 while it stands, 0 by a will or the goodbye."""
    uplink = Uplink(state_topic=STATE)
    uplink.from_cloud(ConnAck(session_present=True))
    [connect, cloud_state], _, [local, record, local_state] = uplink.written()
    for packet in (connect, local):
        assert isinstance(packet, Connect)
        assert packet.will is not None
        assert (packet.will.topic, packet.will.payload, packet.will.retain) == (STATE, b"0", True)
    assert cloud_state == local_state == Publish(STATE, b"1", retain=True)
    assert isinstance(record, Subscribe)
    assert recorded_states([record.subscriptions[0].topic_filter]) == [STATE]
    assert uplink.relay.disconnect()
    cloud, up, down = uplink.written()
    assert cloud == down == [Publish(STATE, b"0", retain=True), Disconnect()]
    assert up == [Disconnect()]


def test_the_state_may_be_told_at_the_site_alone() -> None:
    """The cloud gets no will and no message; as with mosquitto's notifications_local_only."""
    uplink = Uplink(state_topic=STATE, keys=keys_with(notifications_local_only=True))
    uplink.from_cloud(ConnAck(session_present=True))
    cloud, _, [local, _, local_state] = uplink.written()
    [connect] = cloud
    assert isinstance(connect, Connect)
    assert isinstance(local, Connect)
    assert connect.will is None
    assert local.will is not None
    assert local_state == Publish(STATE, b"1", retain=True)
    uplink.relay.disconnect()
    cloud, _, down = uplink.written()
    assert cloud == [Disconnect()]
    assert down == [Publish(STATE, b"0", retain=True), Disconnect()]


# -- messages that pass ----------------------------------------------------------------------------


def test_packet_identifiers_pass_unchanged() -> None:
    """Both ways, with all their acknowledgements."""
    uplink = accepted()
    uplink.from_up(up_message(qos=2, packet_id=7))
    [message], _, _ = uplink.written()
    assert isinstance(message, Publish)
    assert (message.topic, message.qos, message.packet_id) == ("berlin/up/a", 2, 7)
    uplink.from_cloud(PubRec(7))
    uplink.from_up(PubRel(7))
    uplink.from_cloud(PubComp(7))
    assert uplink.written() == ([PubRel(7)], [PubRec(7), PubComp(7)], [])
    uplink.from_cloud(Publish("berlin/down/b", b"y", 2, packet_id=9, retain=True))
    marks = {"user_property": [("penstock-via", "berlin")]}
    message = Publish("down/b", b"y", 2, packet_id=9, retain=True, properties=marks)
    assert uplink.written()[2] == [message]
    uplink.from_down(PubRec(9))
    uplink.from_cloud(PubRel(9))
    uplink.from_down(PubComp(9))
    assert uplink.written() == ([PubRec(9), PubComp(9)], [], [PubRel(9)])
    assert (uplink.counts.up_messages, uplink.counts.down_messages) == (1, 1)


def test_a_message_that_goes_up_tells_site_hops_and_publisher() -> None:
    """Other properties pass; a publisher that the publisher itself claims does not."""
    uplink = accepted()
    uplink.from_up(
        up_message(user=[("k", "v"), (PUBLISHER, "forged")], properties={"content_type": "t"})
    )
    [message], _, _ = uplink.written()
    assert isinstance(message, Publish)
    assert message.properties["content_type"] == "t"
    assert user_properties(message) == [
        ("k", "v"),
        (PUBLISHER, "sensor"),
        ("penstock-site", "berlin"),
        ("penstock-hops", "1"),
    ]


def test_a_message_that_comes_down_tells_where_it_was() -> None:
    """Behind its other properties; the cloud's broker has named its site."""
    uplink = Uplink()
    uplink.accept(user_property=[("penstock-site", "rome")])
    marks = [("penstock-site", "rome"), ("penstock-via", "berlin")]
    for pairs in ([], [("k", "v" * n) for n in range(0, 90, 3)], [("penstock-x", "y")]):
        properties = {"content_type": "t", "user_property": pairs}
        uplink.from_cloud(Publish("berlin/down/b", b"y", properties=properties))
        [message] = uplink.written()[2]
        assert isinstance(message, Publish)
        assert message.properties == {"content_type": "t", "user_property": [*pairs, *marks]}


def test_a_message_of_another_site_keeps_its_publisher() -> None:
    """The other site's uplink is only who has brought it."""
    uplink = accepted()
    pairs = [(PUBLISHER, "sensor"), ("penstock-site", "spandau"), ("penstock-hops", "1")]
    uplink.from_up(up_message(user=pairs, publisher="spandau-cloud"))
    [message], _, _ = uplink.written()
    assert user_properties(message) == [
        (PUBLISHER, "sensor"),
        ("penstock-via", "berlin"),
        ("penstock-site", "spandau"),
        ("penstock-hops", "2"),
    ]


def test_a_payload_passes_in_pieces_and_acknowledgements_wait_for_its_end() -> None:
    """No packet comes between the pieces of another."""
    uplink = accepted()
    frame = write_packet(up_message(payload=b"p" * 100_000), 5)
    uplink.relay.from_up.receive_data(frame[:-70_000])
    uplink.from_cloud(Publish("berlin/down/b", b"y", 1, packet_id=9))
    uplink.from_down(PubAck(9))
    piece = frame[-70_000:]
    assert uplink.relay.cloud.is_in_payload
    uplink.relay.from_up.receive_data(piece)
    assert any(each is piece for each in uplink.relay.cloud.out)
    [message, acknowledgement], _, _ = uplink.written()
    assert isinstance(message, Publish)
    assert message.payload == b"p" * 100_000
    assert acknowledgement == PubAck(9)


def test_mqtt_3_1_1_gets_what_it_has() -> None:
    """No properties, no reason codes; the uplink says that it is a bridge."""
    uplink = Uplink(version=4, is_bridge=True)
    [connect], _, _ = uplink.written()
    assert isinstance(connect, Connect)
    assert (connect.is_bridge, connect.protocol_version) == (True, 4)
    uplink.accept()
    uplink.from_up(up_message(qos=2, packet_id=7, properties={"content_type": "t"}))
    uplink.from_up(PubRel(8, 0x92))
    cloud, _, _ = uplink.written()
    assert cloud == [Publish("berlin/up/a", b"x", 2, packet_id=7), PubRel(8)]
    uplink.from_cloud(PubRec(7), Publish("berlin/down/b", b"y", 1, packet_id=3))
    assert uplink.written()[1:] == ([PubRec(7)], [Publish("down/b", b"y", 1, packet_id=3)])


def test_a_subscription_has_a_packet_identifier_that_no_message_has() -> None:
    """Messages and subscriptions share them."""
    uplink = accepted()
    for packet_id in (1, 32_769, 2):
        uplink.from_up(up_message(qos=1, packet_id=packet_id))
    uplink.written()
    uplink.relay.subscribe([Request("a", 1, wants_retained=True)])
    uplink.relay.unsubscribe(["b"])
    cloud, _, _ = uplink.written()
    assert [packet.packet_id for packet in cloud] == [32_770, 32_771]  # type: ignore[union-attr]


@pytest.mark.parametrize("wants_retained", [True, False])
def test_the_cloud_is_asked_for_topics_and_its_answers_are_kept(
    wants_retained: bool,  # noqa: FBT001
) -> None:
    """It sends what is retained where that is wanted, and never what this site has published."""
    uplink = accepted()
    uplink.relay.subscribe([Request("a/#", 1, wants_retained), Request("b", 2, wants_retained)])
    [subscribe], _, _ = uplink.written()
    assert isinstance(subscribe, Subscribe)
    handling = 0 if wants_retained else 2
    assert subscribe.subscriptions == (
        ("a/#", 1, True, True, handling),
        ("b", 2, True, True, handling),
    )
    uplink.from_cloud(SubAck(subscribe.packet_id, (1, 0x87)))
    uplink.relay.unsubscribe(["a/#"])
    [unsubscribe], _, _ = uplink.written()
    assert isinstance(unsubscribe, Unsubscribe)
    uplink.from_cloud(UnsubAck(unsubscribe.packet_id, (0,)))
    assert uplink.relay.answers == [("a/#", 1), ("b", 0x87), ("a/#", None)]
    assert uplink.counts.subscribe_refused == 1


def test_mqtt_3_1_1_subscribes_without_options() -> None:
    """It has none; many filters go in several packets."""
    uplink = accepted(version=4)
    uplink.relay.subscribe([Request(f"a/{n}", 1, wants_retained=False) for n in range(20)])
    uplink.relay.unsubscribe([f"b/{n}" for n in range(9)])
    cloud, _, _ = uplink.written()
    asked = [len(packet.subscriptions) for packet in cloud if isinstance(packet, Subscribe)]
    given_up = [len(packet.topic_filters) for packet in cloud if isinstance(packet, Unsubscribe)]
    assert (asked, given_up) == ([8, 8, 4], [8, 1])
    uplink = accepted(version=4, keys=keys_with(filters_per_subscribe=20))
    uplink.relay.subscribe([Request(f"a/{n}", 1, wants_retained=False) for n in range(20)])
    cloud, _, _ = uplink.written()
    assert [len(one.subscriptions) for one in cloud if isinstance(one, Subscribe)] == [20]


def test_records_are_kept_as_subscriptions_of_the_session_that_publishes() -> None:
    """They end with it."""
    uplink = accepted()
    uplink.relay.record(["$uplink/cloud/1/a/#"], ["$uplink/cloud/2/b"])
    _, _, [subscribe, unsubscribe] = uplink.written()
    assert isinstance(subscribe, Subscribe)
    assert [one.topic_filter for one in subscribe.subscriptions] == ["$uplink/cloud/1/a/#"]
    assert unsubscribe == Unsubscribe(2, ("$uplink/cloud/2/b",))


# -- retained messages of the cloud ----------------------------------------------------------------


def test_a_marker_is_retained_before_and_subscribed_to_last() -> None:
    """So it comes after what is retained below the filters before it."""
    uplink = accepted()
    uplink.relay.subscribe([Request("berlin/down/#", 2, True)], b"token")
    [unsubscribe, marker, subscribe, own], _, _ = uplink.written()
    assert isinstance(unsubscribe, Unsubscribe)
    assert unsubscribe.topic_filters == (MARKER,)
    assert isinstance(marker, Publish)
    assert (marker.topic, marker.payload, marker.qos, marker.retain) == (MARKER, b"token", 1, True)
    assert isinstance(subscribe, Subscribe)
    assert subscribe.subscriptions[0].topic_filter == "berlin/down/#"
    assert isinstance(own, Subscribe)
    assert own.subscriptions == (SubscriptionRequest(MARKER, 1, False, False, 0),)
    uplink.from_cloud(PubAck(marker.packet_id))
    assert uplink.written() == ([], [], [])


@pytest.mark.parametrize("qos", [0, 1])
def test_a_marker_ends_at_the_uplink(qos: int) -> None:
    """Retained messages before it are told; a live message to its topic is none."""
    uplink = accepted()
    relay = uplink.relay
    uplink.from_cloud(Publish("berlin/down/a", b"x", retain=True))
    relay.watches_retained = True
    uplink.from_cloud(
        Publish("berlin/down/b", b"x", retain=True),
        Publish("berlin/down/c", b"x"),
        Publish(MARKER, b"token", qos, retain=True, packet_id=3 if qos else 0),
    )
    assert (relay.retained, relay.markers) == (["down/b"], [b"token"])
    cloud, up, down = uplink.written()
    assert (cloud, up) == ([PubAck(3)] if qos else [], [])
    assert [packet.topic for packet in down if isinstance(packet, Publish)] == [
        "down/a",
        "down/b",
        "down/c",
    ]
    uplink.from_cloud(Publish(MARKER, b"token"))
    assert relay.markers == [b"token"]


def test_a_refused_marker_is_told() -> None:
    """The cloud forbids its topic."""
    uplink = accepted()
    uplink.relay.subscribe([], b"token")
    [_, marker, _], _, _ = uplink.written()
    assert isinstance(marker, Publish)
    uplink.from_cloud(PubAck(marker.packet_id, 0x87))
    assert uplink.relay.markers == [None]


def test_what_is_cleared_is_cleared_at_the_site_and_a_marker_in_the_cloud() -> None:
    """By empty retained messages."""
    uplink = accepted()
    uplink.relay.clear(["down/a"])
    uplink.relay.end_marker()
    [unsubscribe, marker], _, down = uplink.written()
    assert isinstance(unsubscribe, Unsubscribe)
    assert marker == Publish(MARKER, b"", retain=True)
    assert down == [Publish("down/a", b"", retain=True)]
    assert uplink.counts.retained_cleared == 1


# -- messages that do not pass ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"payload": b"x" * 600}, "too_large"),
        ({"user": [("penstock-site", "berlin")]}, "hops"),
        ({"user": [("penstock-hops", "3")]}, "hops"),
        ({"topic": "elsewhere"}, "not_mapped"),
    ],
)
def test_what_cannot_go_up_is_answered_and_counted(fields: dict[str, Any], reason: str) -> None:
    """By a reason code that the site's broker counts, too; later messages pass."""
    uplink = Uplink()
    uplink.accept(maximum_packet_size=500)
    for qos in (0, 1, 2):
        uplink.from_up(up_message(qos=qos, packet_id=qos and 5, **fields))
    assert uplink.written() == ([], [PubAck(5, 0x83), PubRec(5, 0x83)], [])
    assert uplink.counts.up_dropped == {reason: 3}
    uplink.from_up(up_message())
    assert len(uplink.written()[0]) == 1


@pytest.mark.parametrize("told", [400, 600, None])
def test_a_cloud_that_takes_less_than_it_says_gets_less(told: int | None) -> None:
    """One of MQTT 3.1.1 says nothing. Of what it says and what is known, the less counts."""
    uplink = Uplink(keys=keys_with(maximum_packet_size=500))
    properties: dict[str, Any] = {} if told is None else {"maximum_packet_size": told}
    uplink.accept(**properties)
    assert uplink.relay.maximum_packet_size == min(told or 500, 500)
    uplink.from_up(up_message(payload=b"x" * 600), up_message(payload=b"x" * 100))
    assert uplink.counts.up_dropped == {"too_large": 1}


def test_a_repeat_that_cannot_go_up_is_released_in_the_cloud_first() -> None:
    """It may have the message: the next one with that identifier would be a repeat to it."""
    uplink = Uplink()
    uplink.accept(maximum_packet_size=500)
    uplink.from_up(up_message(qos=2, packet_id=5, dup=True, payload=b"x" * 600))
    assert uplink.written() == ([PubRel(5)], [], [])
    uplink.from_cloud(PubComp(5, 0x92))
    assert uplink.written() == ([], [PubRec(5, 0x83)], [])


@pytest.mark.parametrize("lane", ["", "-large"])
def test_what_came_down_does_not_go_up_again(lane: str) -> None:
    """By any lane: it is the cloud's own, and is not counted as dropped."""
    uplink = accepted()
    uplink.from_up(up_message(qos=1, packet_id=5, publisher=f"$uplink/cloud/down{lane}"))
    assert uplink.written() == ([], [PubAck(5)], [])
    assert uplink.counts.up_dropped == {}


@pytest.mark.parametrize(("qos", "reason"), [(1, PubAck), (2, PubRec)])
def test_what_the_cloud_refuses_is_counted(qos: int, reason: type) -> None:
    """The site's broker is told as it came."""
    uplink = accepted()
    uplink.from_up(up_message(qos=qos, packet_id=5))
    uplink.written()
    uplink.from_cloud(reason(5, 0x87))
    assert uplink.written()[1] == [reason(5, 0x87)]
    assert uplink.counts.up_dropped == {"refused": 1}


def test_a_lower_maximum_qos_is_kept_to() -> None:
    """A message of QoS 2 goes up at QoS 1; the site's broker gets its whole exchange."""
    uplink = Uplink()
    uplink.accept(maximum_qos=1)
    uplink.from_up(up_message(qos=2, packet_id=5))
    [message], _, _ = uplink.written()
    assert isinstance(message, Publish)
    assert message.qos == 1
    uplink.from_cloud(PubAck(5))
    uplink.from_up(PubRel(5))
    assert uplink.written() == ([], [PubRec(5), PubComp(5)], [])
    assert uplink.counts.changed == {"qos_lowered": 1}


def test_at_a_maximum_qos_of_0_messages_are_answered_here() -> None:
    """Nothing else would answer."""
    uplink = Uplink()
    uplink.accept(maximum_qos=0)
    uplink.from_up(up_message(qos=1, packet_id=5), up_message(qos=2, packet_id=6), PubRel(6))
    cloud, up, _ = uplink.written()
    assert [packet.qos for packet in cloud if isinstance(packet, Publish)] == [0, 0]
    assert up == [PubAck(5), PubRec(6), PubComp(6)]


@pytest.mark.parametrize(
    ("settings", "told", "changed"),
    [
        ({}, {"retain_available": 0}, {"retain_cleared": 1}),
        ({"version": 4, "keys": keys_with(outgoing_retain=False)}, {}, {}),
    ],
    ids=["told by CONNACK", "told by the policy file"],
)
def test_a_cloud_that_retains_nothing_gets_no_retained_message(
    settings: dict[str, Any], told: dict[str, Any], changed: dict[str, int]
) -> None:
    """The message passes without the flag; it would end the connection."""
    uplink = Uplink(state_topic=STATE, **settings)
    uplink.accept(**told)
    uplink.from_up(up_message(retain=True))
    [message], _, _ = uplink.written()
    assert isinstance(message, Publish)
    assert not message.retain
    assert uplink.counts.changed == changed


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Publish("elsewhere", b"x"), "not_mapped"),
        (
            Publish(
                "berlin/down/a", b"x", properties={"user_property": [("penstock-site", "berlin")]}
            ),
            "hops",
        ),
    ],
)
def test_what_cannot_come_down_is_answered_and_counted(message: Publish, reason: str) -> None:
    """The cloud's broker goes on; a PUBREL for it passes, and the site's broker answers."""
    uplink = accepted()
    uplink.from_cloud(message)
    message.qos, message.packet_id = 1, 5
    uplink.from_cloud(message)
    message.qos = 2
    uplink.from_cloud(message, PubRel(5))
    assert uplink.written() == ([PubAck(5), PubRec(5)], [], [PubRel(5)])
    assert uplink.counts.down_dropped == {reason: 3}


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "reason", "told"),
    [
        (ConnAck(reason_code=0x87), "refused", "not authorized"),
        (ConnAck(reason_code=0x9C, properties={"server_reference": "b"}), "refused", "server: b"),
        (Disconnect(0x8E), "taken_over", "taken over"),
        (Disconnect(0x8B, {"reason_string": "night"}), "disconnected", "night"),
    ],
)
def test_the_end_is_named(packet: Packet, reason: str, told: str) -> None:
    """By what the cloud's broker says."""
    uplink = Uplink()
    if isinstance(packet, Disconnect):
        uplink.accept()
    with pytest.raises(UplinkRefusedError, match=told) as raised:
        uplink.from_cloud(packet)
    assert raised.value.reason == reason


@pytest.mark.parametrize("packet", [PingResp(), Publish("a", b"")])
def test_nothing_comes_before_connack(packet: Packet) -> None:
    """The cloud's broker has to say who it is."""
    with pytest.raises(PeerError, match="before CONNACK"):
        Uplink().from_cloud(packet)


def test_a_refusal_of_the_sites_own_broker_is_named() -> None:
    """It ends the uplink."""
    uplink = accepted()
    with pytest.raises(UplinkRefusedError, match="own broker: quota exceeded") as raised:
        uplink.from_up(ConnAck(reason_code=0x97))
    assert raised.value.reason == "local"


# -- one thing at a time ---------------------------------------------------------------------------


def careful(**settings: Any) -> Uplink:
    """Return an uplink that was accepted after a connection that was ended at something."""
    uplink = Uplink(**settings)
    uplink.suspects._watch([SentItem("message", "up/other", 99)])
    uplink.suspects.accepted()
    uplink.accept()
    return uplink


def test_a_careful_connection_sends_a_message_when_the_last_one_is_answered() -> None:
    """One of QoS 0 is answered by the PINGRESP for a PINGREQ behind it."""
    uplink = careful()
    uplink.from_up(up_message(qos=1, packet_id=7), up_message(topic="up/b"), PubRel(5))
    uplink.from_up(up_message(qos=2, packet_id=8, topic="up/c"), up_message(topic="up/d"))
    assert [packet.topic for packet in sent(uplink)] == ["berlin/up/a"]
    assert uplink.relay.under_way() == [SentItem("message", "up/a", 7, 1)]
    uplink.from_cloud(PubAck(7))
    cloud, up, _ = uplink.written()
    assert [type(packet) for packet in cloud] == [Publish, PingReq]
    assert up == [PubAck(7)]
    assert uplink.relay.under_way() == [SentItem("qos0", "up/b", 0, 1)]
    uplink.relay.ping()
    uplink.from_cloud(PingResp())
    cloud, _, _ = uplink.written()
    assert cloud == [PingReq(), PubRel(5)]
    uplink.from_cloud(PubComp(5))
    cloud, _, _ = uplink.written()
    assert [packet.topic for packet in cloud if isinstance(packet, Publish)] == ["berlin/up/c"]
    uplink.from_cloud(PubRec(8))
    assert [packet.topic for packet in sent(uplink)] == ["berlin/up/d"]


def sent(uplink: Uplink) -> list[Publish]:
    """Return the messages that were written to the cloud since the last call."""
    return [packet for packet in uplink.written()[0] if isinstance(packet, Publish)]


def test_a_careful_connection_asks_for_one_filter_at_a_time() -> None:
    """Messages wait meanwhile; what the broker has ended connections at is refused."""
    uplink = careful()
    uplink.suspects._aside[SentItem("filter", "f/bad").key] = 1.0
    uplink.relay.subscribe([Request(f"f/{name}", 1, True) for name in ("a", "bad", "b")])
    uplink.from_up(up_message(qos=1, packet_id=7))
    asked = []
    for _ in range(2):
        [subscribe], _, _ = uplink.written()
        assert isinstance(subscribe, Subscribe)
        asked += [request.topic_filter for request in subscribe.subscriptions]
        uplink.from_cloud(SubAck(subscribe.packet_id, (1,)))
    assert asked == ["f/a", "f/b"]
    assert [packet.topic for packet in sent(uplink)] == ["berlin/up/a"]
    assert uplink.relay.answers == [("f/bad", 0x80), ("f/a", 1), ("f/b", 1)]


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck(7, 0x83)), (2, PubRec(7, 0x83))])
def test_what_is_set_aside_is_refused_to_the_site(qos: int, answer: Packet) -> None:
    """And counted; then its packet identifier is that of another message."""
    uplink = accepted()
    for _ in range(2):
        end = End(True, 0x81, [SentItem("message", "up/a", 7)], True, False, False)
        uplink.suspects.ended(end)
    uplink.from_up(up_message(qos=qos, packet_id=7, dup=True))
    cloud, up, _ = uplink.written()
    if qos == 2:  # what the cloud may know of it is forgotten first
        assert cloud == [PubRel(7)]
        uplink.from_cloud(PubComp(7, 0x92))
        up = uplink.written()[1]
    assert up == [answer]
    assert uplink.counts.up_dropped == {"refused": 1}
    uplink.from_up(up_message(qos=qos, packet_id=7))
    assert len(sent(uplink)) == 1


def test_a_retained_message_that_was_refused_is_tried_without_its_flag() -> None:
    """Where that is taken, the others go without it as well."""
    uplink = accepted()
    thing = SentItem("message", "up/a", 7, is_retained=True)
    uplink.suspects.ended(End(True, 0x9A, [thing], True, False, False))
    assert not uplink.suspects.retains_nothing
    uplink.from_up(up_message(qos=1, packet_id=7, retain=True))
    assert [packet.retain for packet in sent(uplink)] == [False]
    uplink.from_cloud(PubAck(7))
    uplink.from_up(up_message(qos=1, packet_id=8, retain=True))
    assert [packet.retain for packet in sent(uplink)] == [False]
    assert uplink.counts.changed == {"retain_cleared": 2}


def test_a_message_of_the_cloud_that_is_too_large_is_answered_and_counted() -> None:
    """MQTT 3.1.1 does not tell the cloud how large one may be: it would come again and again."""
    uplink = accepted(version=4, maximum_packet_size=500)
    for qos, answer in ((1, PubAck(9)), (2, PubRec(9)), (0, None)):
        uplink.from_cloud(Publish("berlin/down/b", b"y" * 500, qos, packet_id=9 if qos else 0))
        assert uplink.written() == ([] if answer is None else [answer], [], [])
    assert uplink.counts.down_dropped == {"too_large": 3}
