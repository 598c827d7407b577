"""Packets and their bytes, for both versions; each is read and written.

The bytes are put together by hand from the figures of the two specifications.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.mqtt.packets import (
    Auth,
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
    Will,
)


class Vector(NamedTuple):
    """A packet of one version and all of its bytes, as hexadecimal digits."""

    name: str
    version: int
    packet: Packet
    digits: str

    @property
    def frame(self) -> bytes:
        """All bytes of the packet."""
        return bytes.fromhex(self.digits)

    @property
    def first_byte(self) -> int:
        """Packet type and flags."""
        return self.frame[0]

    @property
    def body(self) -> bytes:
        """What follows the Remaining Length, which has one byte in all of these."""
        return self.frame[2:]


VECTORS = [
    Vector(
        "CONNECT 3.1.1, least",
        4,
        Connect(client_id="", protocol_version=4, keep_alive=60),
        "10 0c 0004 4d515454 04 02 003c 0000",
    ),
    Vector(
        "CONNECT 3.1.1, a bridge",
        4,
        Connect(client_id="", protocol_version=4, keep_alive=60, is_bridge=True),
        "10 0c 0004 4d515454 84 02 003c 0000",
    ),
    Vector(
        "CONNECT 3.1.1, will, user name, password",
        4,
        Connect(
            client_id="c1",
            protocol_version=4,
            clean_start=False,
            keep_alive=0,
            username="u",
            password=b"\x00\xff",
            will=Will("w/t", b"bye", qos=2, retain=True),
        ),
        "10 1f 0004 4d515454 04 f4 0000 0002 6331 0003 772f74 0003 627965 0001 75 0002 00ff",
    ),
    Vector(
        "CONNECT 5, least",
        5,
        Connect(client_id="", protocol_version=5, keep_alive=10),
        "10 0d 0004 4d515454 05 02 000a 00 0000",
    ),
    Vector(
        "CONNECT 5, properties, will with properties, password alone",
        5,
        Connect(
            client_id="c",
            clean_start=True,
            keep_alive=65535,
            password=b"p",
            will=Will(
                "t",
                b"",
                qos=1,
                properties={"will_delay_interval": 5, "user_property": [("a", "b")]},
            ),
            properties={"session_expiry_interval": 0xFFFFFFFF, "receive_maximum": 20},
        ),
        "10 2b 0004 4d515454 05 4e ffff 08 11 ffffffff 21 0014 0001 63"
        "0c 18 00000005 26 0001 61 0001 62 0001 74 0000 0001 70",
    ),
    Vector(
        "CONNECT 5, authentication",
        5,
        Connect(
            client_id="é",
            keep_alive=1,
            properties={"authentication_method": "SCRAM", "authentication_data": b"\x01"},
        ),
        "10 1b 0004 4d515454 05 02 0001 0c 15 0005 534352414d 16 0001 01 0002 c3a9",
    ),
    Vector(
        "CONNECT 3.1",
        3,
        Connect(client_id="a", protocol_version=3, keep_alive=60, username="u", password=b"p"),
        "10 15 0006 4d5149736470 03 c2 003c 0001 61 0001 75 0001 70",
    ),
    Vector("CONNACK 3.1, accepted", 3, ConnAck(), "20 02 00 00"),
    Vector(
        "PUBLISH 3.1, QoS 1", 3, Publish("a", b"x", qos=1, packet_id=10), "32 06 0001 61 000a 78"
    ),
    Vector("CONNACK 3.1.1, accepted", 4, ConnAck(session_present=True), "20 02 01 00"),
    Vector("CONNACK 3.1.1, wrong version", 4, ConnAck(reason_code=0x84), "20 02 00 01"),
    Vector("CONNACK 3.1.1, identifier", 4, ConnAck(reason_code=0x85), "20 02 00 02"),
    Vector("CONNACK 3.1.1, unavailable", 4, ConnAck(reason_code=0x88), "20 02 00 03"),
    Vector("CONNACK 3.1.1, password", 4, ConnAck(reason_code=0x86), "20 02 00 04"),
    Vector("CONNACK 3.1.1, not authorized", 4, ConnAck(reason_code=0x87), "20 02 00 05"),
    Vector("CONNACK 5, accepted", 5, ConnAck(), "20 03 00 00 00"),
    Vector(
        "CONNACK 5, properties",
        5,
        ConnAck(
            session_present=True, properties={"assigned_client_identifier": "x", "maximum_qos": 1}
        ),
        "20 09 01 00 06 12 0001 78 24 01",
    ),
    Vector(
        "CONNACK 5, refused",
        5,
        ConnAck(reason_code=0x8A, properties={"reason_string": "no"}),
        "20 08 00 8a 05 1f 0002 6e6f",
    ),
    Vector("PUBLISH 3.1.1, QoS 0", 4, Publish("a/b", b"hi"), "30 07 0003 612f62 6869"),
    Vector("PUBLISH 3.1.1, empty payload", 4, Publish("a", retain=True), "31 03 0001 61"),
    Vector(
        "PUBLISH 3.1.1, QoS 1, DUP, RETAIN",
        4,
        Publish("a", b"\x00", qos=1, retain=True, dup=True, packet_id=10),
        "3b 06 0001 61 000a 00",
    ),
    Vector(
        "PUBLISH 3.1.1, QoS 2, byte order mark in the topic [MQTT-1.5.4-3]",
        4,
        Publish("\ufeffa", b"x", qos=2, packet_id=65535),
        "34 09 0004 efbbbf61 ffff 78",
    ),
    Vector("PUBLISH 5, QoS 0", 5, Publish("a", b"hi"), "30 06 0001 61 00 6869"),
    Vector(
        "PUBLISH 5, QoS 1, all properties",
        5,
        Publish(
            "a",
            b"z",
            qos=1,
            packet_id=256,
            properties={
                "payload_format_indicator": 1,
                "message_expiry_interval": 60,
                "topic_alias": 3,
                "response_topic": "r",
                "correlation_data": b"\xff",
                "user_property": [("k", "1"), ("k", "2")],
                "subscription_identifier": [1, 268_435_455],
                "content_type": "t",
            },
        ),
        "32 32 0001 61 0100 2b 01 01 02 0000003c 23 0003 08 0001 72 09 0001 ff"
        "26 0001 6b 0001 31 26 0001 6b 0001 32 0b 01 0b ffffff7f 03 0001 74 7a",
    ),
    Vector(
        "PUBLISH 5, topic alias for the topic",
        5,
        Publish("", b"z", properties={"topic_alias": 65535}),
        "30 07 0000 03 23 ffff 7a",
    ),
    Vector("PUBACK 3.1.1", 4, PubAck(1), "40 02 0001"),
    Vector("PUBREC 3.1.1", 4, PubRec(2), "50 02 0002"),
    Vector("PUBREL 3.1.1", 4, PubRel(3), "62 02 0003"),
    Vector("PUBCOMP 3.1.1", 4, PubComp(65535), "70 02 ffff"),
    Vector("PUBACK 5, short", 5, PubAck(1), "40 02 0001"),
    Vector("PUBACK 5, reason", 5, PubAck(1, 0x97), "40 03 0001 97"),
    Vector("PUBREC 5, reason", 5, PubRec(1, 0x10), "50 03 0001 10"),
    Vector("PUBREL 5, reason", 5, PubRel(1, 0x92), "62 03 0001 92"),
    Vector(
        "PUBCOMP 5, properties",
        5,
        PubComp(1, 0x92, {"reason_string": "gone", "user_property": [("", "")]}),
        "70 10 0001 92 0c 1f 0004 676f6e65 26 0000 0000",
    ),
    Vector(
        "PUBACK 5, properties with reason 0",
        5,
        PubAck(1, 0, {"user_property": [("a", "")]}),
        "40 0a 0001 00 06 26 0001 61 0000",
    ),
    Vector(
        "SUBSCRIBE 3.1.1",
        4,
        Subscribe(5, (SubscriptionRequest("a/+", 0), SubscriptionRequest("#", 2))),
        "82 0c 0005 0003 612f2b 00 0001 23 02",
    ),
    Vector(
        "SUBSCRIBE 5, all options",
        5,
        Subscribe(
            5,
            (
                SubscriptionRequest(
                    "a", 1, no_local=True, retain_as_published=True, retain_handling=2
                ),
                SubscriptionRequest("$share/g/+", 2, retain_handling=1),
            ),
            {"subscription_identifier": [128]},
        ),
        "82 17 0005 03 0b 8001 0001 61 2d 000a 2473686172652f672f2b 12",
    ),
    Vector("SUBACK 3.1.1", 4, SubAck(5, (0, 1, 2, 0x80)), "90 06 0005 00010280"),
    Vector(
        "SUBACK 5",
        5,
        SubAck(5, (2, 0x87), {"reason_string": "x"}),
        "90 09 0005 04 1f 0001 78 02 87",
    ),
    Vector("UNSUBSCRIBE 3.1.1", 4, Unsubscribe(6, ("a", "+/b")), "a2 0a 0006 0001 61 0003 2b2f62"),
    Vector("UNSUBSCRIBE 5", 5, Unsubscribe(6, ("a",)), "a2 06 0006 00 0001 61"),
    Vector("UNSUBACK 3.1.1", 4, UnsubAck(6), "b0 02 0006"),
    Vector("UNSUBACK 5", 5, UnsubAck(6, (0, 0x11)), "b0 05 0006 00 0011"),
    Vector("PINGREQ 3.1.1", 4, PingReq(), "c0 00"),
    Vector("PINGREQ 5", 5, PingReq(), "c0 00"),
    Vector("PINGRESP 3.1.1", 4, PingResp(), "d0 00"),
    Vector("PINGRESP 5", 5, PingResp(), "d0 00"),
    Vector("DISCONNECT 3.1.1", 4, Disconnect(), "e0 00"),
    Vector("DISCONNECT 5, short", 5, Disconnect(), "e0 00"),
    Vector("DISCONNECT 5, reason", 5, Disconnect(0x04), "e0 01 04"),
    Vector(
        "DISCONNECT 5, properties",
        5,
        Disconnect(0x9C, {"server_reference": "h"}),
        "e0 06 9c 04 1c 0001 68",
    ),
    Vector("AUTH 5, short", 5, Auth(), "f0 00"),
    Vector(
        "AUTH 5, success with its method",
        5,
        Auth(0, {"authentication_method": "M"}),
        "f0 06 00 04 15 0001 4d",
    ),
    Vector(
        "AUTH 5, continue",
        5,
        Auth(0x18, {"authentication_method": "M", "authentication_data": b""}),
        "f0 09 18 07 15 0001 4d 16 0000",
    ),
]

LONGER_FORMS = [
    Vector("PUBACK 5, reason 0 spelt out", 5, PubAck(1), "40 03 0001 00"),
    Vector("PUBREC 5, no properties spelt out", 5, PubRec(1, 0x10), "50 04 0001 10 00"),
    Vector("DISCONNECT 5, reason 0 spelt out", 5, Disconnect(), "e0 01 00"),
    Vector("DISCONNECT 5, no properties spelt out", 5, Disconnect(0x04), "e0 02 04 00"),
]
"""What a peer may send and we, who leave out all that can be left out, do not."""
