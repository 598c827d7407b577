"""The behaviours that the Eclipse Paho interoperability cases ask of a server.

Ten cases of MQTT 3.1.1, and the same of MQTT 5.0, are here, each shown for both versions:

- connect, publish at each QoS, wrong CONNECTs: `test_basic`, `test_second_connect`,
  `test_wrong_protocol_name`
- retained messages: `test_retained_messages`
- zero-length Client Identifier: `test_zero_length_client_id`, `test_zero_length_client_id_of_3_1_1`
- messages queued for offline clients: `test_offline_message_queueing`
- overlapping subscriptions: `test_overlapping_subscriptions`
- keep alive: `test_keep_alive`
- redelivery on reconnect: `test_redelivery_on_reconnect`
- refused subscription: `test_subscribe_failure`
- topics that begin with $: `test_dollar_topics`
- unsubscribe: `test_unsubscribe`

The seventeen further cases of MQTT 5.0 are in `test_paho_cases_5`:

- will: `test_will_message`; delayed: `test_will_delay`, `test_will_comes_with_the_end_of_session`,
  `test_will_delay_without_a_session`
- session expiry: `test_session_expiry`, `test_session_expiry_of_disconnect`
- user properties; payload format and content type: `test_properties_come_as_published`
- publication expiry: `test_publication_expiry`
- subscribe options: `test_no_local`, `test_retain_as_published`, `test_retain_handling`
- assigned Client Identifier: `test_assigned_client_id`
- subscription identifiers: `test_subscription_identifiers`
- request and response: `test_request_response`
- topic alias of the client: `test_client_topic_alias`, `test_topic_aliases_end`,
  `test_invalid_topic_alias`; of the server: `test_server_topic_alias`,
  `test_no_server_topic_alias`
- maximum packet size: `test_maximum_packet_size_of_server`, `test_maximum_packet_size_of_client`
- server keep alive: `test_server_keep_alive`
- flow control: `test_receive_maximum_of_client`, `test_receive_maximum_of_server`
- shared subscriptions: `test_shared_subscription`
"""

from __future__ import annotations

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.broker.mqtt.packets import Connect, PubAck, PubComp, Publish, PubRec, PubRel, Will
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.cluster import Service
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient
from tests.helpers.wire import WireClient, connected, ending
from tests.system.interop.cases import NO_SUBSCRIBE, connect, fresh, until

PAHO = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
WIRE = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])


def kept(version: int) -> dict[str, object]:
    """Return the options of a CONNECT whose session stays."""
    expiry = {"session_expiry_interval": 60} if version == 5 else {}
    return {"clean_start": False, "properties": expiry}


@PAHO
def test_basic(cases: Service, version: MQTTProtocolVersion) -> None:
    """A client that comes again without a session gets what it publishes at each QoS."""
    name = fresh("basic")
    connect(cases.port, name, version).close()
    with connect(cases.port, name, version) as client:
        assert not client.connack[0]
        assert client.subscribe(name, 2)
        for qos in range(3):
            client.publish(name, b"%d" % qos, qos)
        messages = [client.message() for _ in range(3)]
        assert [(m.topic, m.payload, m.qos) for m in messages] == [
            (name, b"%d" % qos, qos) for qos in range(3)
        ]


@WIRE
@pytest.mark.mqtt311("3.1.0-2")
@pytest.mark.mqtt5("3.1.0-2")
async def test_second_connect(cases: Service, version: int) -> None:
    """A second CONNECT on a connection ends it [MQTT-3.1.0-2]."""
    async with await connected(cases.port, fresh("twice"), version) as client:
        await client.send(Connect(protocol_version=version))
        said = [packet.reason_code for packet in await client.rest()]  # type: ignore[union-attr]
        assert said == ([0x82] if version == 5 else [])


@WIRE
async def test_wrong_protocol_name(cases: Service, version: int) -> None:
    """Who speaks another protocol is not let in [MQTT-3.1.2-1]."""
    packet = write_packet(Connect(protocol_version=version), version)
    async with await WireClient.dial(cases.port, version) as client:
        await client.send_bytes(packet.replace(b"MQTT", b"hjhj"))
        answer = await client.rest_bytes()
        assert not answer or (answer[0], answer[3]) == (0x20, 0x01)  # in the words of 3.1.1


@PAHO
@pytest.mark.mqtt311("3.3.1-5", "3.3.1-6", "3.3.1-8", "3.3.1-10")
def test_retained_messages(cases: Service, version: MQTTProtocolVersion) -> None:
    """They come at their own QoS to who subscribes later; an empty payload removes them."""
    base = fresh("retained")
    with connect(cases.port, base, version) as client:
        for qos in range(3):
            client.publish(f"{base}/{qos}", b"data", qos, retain=True)
        assert client.subscribe(f"{base}/+", 2)
        messages = [client.message() for _ in range(3)]
        assert sorted((m.topic, m.qos, m.retain) for m in messages) == [
            (f"{base}/{qos}", qos, True) for qos in range(3)
        ]
        for qos in range(3):
            client.publish(f"{base}/{qos}", b"", qos, retain=True)
        assert [client.message().payload for _ in range(3)] == [b"", b"", b""]
        assert client.subscribe(f"{base}/#", 2)
        client.publish(f"{base}/0", b"end", 0)
        assert not until(client, b"end")


@pytest.mark.mqtt311("3.1.3-6", "3.1.3-8")
async def test_zero_length_client_id_of_3_1_1(cases: Service) -> None:
    """It is accepted with Clean Session alone, else refused with return code 2."""
    async with await WireClient.dial(cases.port, 4) as client:
        assert (await client.connect("", clean_start=False)).reason_code == 0x85
        assert not await client.rest()
    async with await WireClient.dial(cases.port, 4) as client:
        assert (await client.connect("", clean_start=True)).reason_code == 0


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.mqtt5("3.1.3-6")
async def test_zero_length_client_id(cases: Service, *, clean_start: bool) -> None:
    """MQTT 5.0 accepts it with and without Clean Start."""
    async with await WireClient.dial(cases.port) as client:
        connack = await client.connect("", clean_start=clean_start)
        assert (connack.reason_code, connack.session_present) == (0, False)


@PAHO
@pytest.mark.mqtt311("3.1.2-4", "3.1.2-5", "3.2.2-2")
def test_offline_message_queueing(cases: Service, version: MQTTProtocolVersion) -> None:
    """What came at QoS 1 and 2 while a client was away waits for it; QoS 0 may."""
    base = fresh("offline")
    with connect(cases.port, base, version, expiry=60) as client:
        assert client.subscribe(f"{base}/#", 2)
    with connect(cases.port, f"{base}-publisher", version) as publisher:
        for qos in range(3):
            publisher.publish(f"{base}/{qos}", b"%d" % qos, qos)
        with connect(cases.port, base, version, expiry=60) as client:
            assert client.connack[0]
            waited = {(f"{base}/{qos}", b"%d" % qos, qos) for qos in range(3)}
            came: list[tuple[str, bytes, int]] = []
            while sum(qos > 0 for _, _, qos in came) < len((1, 2)):
                message = client.message()
                came.append((message.topic, bytes(message.payload), message.qos))
            assert len(set(came)) == len(came)
            assert set(came) <= waited


@PAHO
@pytest.mark.mqtt311("3.3.5-1")
@pytest.mark.mqtt5("3.3.4-2")
def test_overlapping_subscriptions(cases: Service, version: MQTTProtocolVersion) -> None:
    """One message comes, at the highest QoS of the subscriptions that match."""
    base = fresh("overlapping")
    with connect(cases.port, base, version) as client:
        assert client.subscribe(f"{base}/#", 2)
        assert client.subscribe(f"{base}/+", 1)
        client.publish(f"{base}/c", b"data", 2)
        client.publish(f"{base}/c", b"end", 2)
        assert [message.qos for message in until(client, b"end")] == [2]


@WIRE
@pytest.mark.mqtt311("3.1.2-24")
@pytest.mark.mqtt5("3.1.2-22")
async def test_keep_alive(cases: Service, version: int) -> None:
    """A client that is silent for longer than it said is dropped, and its will comes."""
    topic = fresh("silent")
    will = Will(topic, b"keep-alive expired")
    async with await connected(cases.port, f"{topic}-watcher", version) as watcher:
        await watcher.subscribe(topic, 2)
        async with await connected(cases.port, topic, version, keep_alive=1, will=will) as silent:
            assert (await watcher.take(Publish)).payload == will.payload
            said = await silent.rest()
        assert ending(said) == (0x8D if version == 5 else None)


@WIRE
@pytest.mark.mqtt311("4.4.0-1")
@pytest.mark.mqtt5("4.4.0-1")
async def test_redelivery_on_reconnect(cases: Service, version: int) -> None:
    """What was sent and not acknowledged comes again with DUP, and its exchange goes on."""
    topic = fresh("again")
    publisher = await connected(cases.port, f"{topic}-publisher", version)
    async with publisher:
        async with await connected(cases.port, topic, version, **kept(version)) as client:
            await client.subscribe(topic, 2)
            await publisher.publish(topic, b"1")
            await publisher.send(Publish(topic, b"2", qos=2, packet_id=2))
            await publisher.take(PubRec)
            await publisher.send(PubRel(2))
            await publisher.take(PubComp)
            first = [await client.take(Publish) for _ in range(2)]
            assert not any(message.dup for message in first)
        client = await WireClient.dial(cases.port, version)
        async with client:
            assert (await client.connect(topic, **kept(version))).session_present
            again = [await client.take(Publish) for _ in range(2)]
            assert [(m.payload, m.qos, m.packet_id) for m in again] == [
                (m.payload, m.qos, m.packet_id) for m in first
            ]
            assert all(message.dup for message in again)
            await client.send(PubAck(again[0].packet_id), PubRec(again[1].packet_id))
            assert (await client.take(PubRel)).packet_id == again[1].packet_id
            await client.send(PubComp(again[1].packet_id))
            await publisher.publish(topic, b"3")
            assert (await client.take(Publish)).payload == b"3"


@WIRE
async def test_subscribe_failure(cases: Service, version: int) -> None:
    """A subscription that is not allowed is answered by a failure; others are granted."""
    async with await connected(cases.port, fresh("refused"), version) as client:
        assert await client.subscribe(NO_SUBSCRIBE, 2) == 0x80
        assert await client.subscribe("test/subscribe", 2) == 2


@PAHO
@pytest.mark.mqtt311("4.7.2-1")
@pytest.mark.mqtt5("4.7.2-1")
def test_dollar_topics(cases: Service, version: MQTTProtocolVersion) -> None:
    """A filter that begins with a wildcard matches no topic that begins with $."""
    base = fresh("dollar")
    with connect(cases.port, base, version) as client:
        assert client.subscribe("#", 2)
        assert client.subscribe(f"+/{base}", 2)
        client.publish(f"$x/{base}", b"data")
        client.publish(f"x/{base}", b"end")
        assert not [m for m in until(client, b"end") if m.topic.startswith("$")]
        assert client.subscribe(f"$x/{base}", 2)
        client.publish(f"$x/{base}", b"data")
        while (message := client.message()).payload != b"data":
            assert not message.topic.startswith("$")


@PAHO
@pytest.mark.mqtt311("3.10.4-2")
@pytest.mark.mqtt5("3.10.4-2")
def test_unsubscribe(cases: Service, version: MQTTProtocolVersion) -> None:
    """Nothing comes of the filter that was given up; the others stay."""
    base = fresh("unsubscribe")
    with connect(cases.port, base, version) as client:
        for name in "abc":
            assert client.subscribe(f"{base}/{name}", 2)
        unsubscribe(client, f"{base}/a")
        with connect(cases.port, f"{base}-publisher", version) as publisher:
            for name in "abc":
                publisher.publish(f"{base}/{name}", name.encode())
        assert client.payloads(2) == [b"b", b"c"]


def unsubscribe(client: PahoClient, topic_filter: str) -> None:
    """Give up a subscription and wait for the answer to what follows it."""
    client.paho.unsubscribe(topic_filter)
    client.publish(fresh("after"), b"")
