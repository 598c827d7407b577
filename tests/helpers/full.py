"""Subscribers whose outbox is full, and the answers to their publishers, on a virtual clock."""

from __future__ import annotations

from typing import Any

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.virtual import VirtualBroker, VirtualClient

SMALL: dict[str, Any] = {"queued_messages": 2}
FULL = ReasonCode.QUOTA_EXCEEDED


def kept(broker: VirtualBroker, client_id: str = "s", topic_filter: str = "t") -> VirtualClient:
    """Return a client that is subscribed at QoS 2 and whose session is kept."""
    properties = {"session_expiry_interval": 10_000}
    client = broker.connect(client_id, clean_start=False, properties=properties)
    client.subscribe(topic_filter, 2)
    return client


def stalled(broker: VirtualBroker, client_id: str = "s", topic_filter: str = "t") -> None:
    """Subscribe a client that takes nothing, until it connects again."""
    kept(broker, client_id, topic_filter).stall()


def send(client: VirtualClient, *numbers: int, qos: int = 1, **options: Any) -> None:
    """Publish messages, as one chunk of bytes, with their numbers as packet identifiers."""
    version = client.connection.client.version
    packets = [
        Publish("t", b"%d" % number, qos=qos, packet_id=number, **options) for number in numbers
    ]
    client.send_bytes(b"".join(write_packet(packet, version) for packet in packets))


def acknowledged(client: VirtualClient) -> dict[int, int]:
    """Return the packet identifiers that PUBACK or PUBREC has come for, and the reason codes."""
    answers = {answer.packet_id: answer.reason_code for answer in client.take_all(PubAck)}
    return answers | {answer.packet_id: answer.reason_code for answer in client.take_all(PubRec)}


def drain(client: VirtualClient) -> list[bytes]:
    """Take and acknowledge all that comes; return the payloads."""
    found: list[bytes] = []
    while packets := client.take_all(Publish):
        for packet in packets:
            found.append(packet.payload)
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                client.send(PubRec(packet.packet_id), PubComp(packet.packet_id))
    client.take_all(PubRel)
    return found


def check(broker: VirtualBroker) -> None:
    """See that all books balance."""
    for session in broker.core.sessions:
        session.check_invariants()
