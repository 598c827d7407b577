"""A site with mosquitto and a bridge moves to Penstock by one import."""

from __future__ import annotations

import getpass
import subprocess
import sys
from pathlib import Path

import yaml

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import load_policy
from penstock.broker.mqtt.packets import PubAck, Publish, SubAck, Subscribe, SubscriptionRequest
from penstock.edge_proxy.uplink.config import UplinkConfig, UplinkKeys
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import until
from tests.helpers.certificates import Authority
from tests.helpers.metered_link import MeteredLink, metered_link
from tests.helpers.mosquitto import Mosquitto, running_mosquitto
from tests.helpers.process import ROOT, running_broker
from tests.helpers.wire import WireClient, connected
from tests.system.interop.test_sidecar_matrix import running_amqtt

TWO_BRIDGES = """\
per_listener_settings false
listener 1883
allow_anonymous true
persistence true
persistence_location {folder}
log_dest syslog

# The cloud, by TLS.
connection cloud
address cloud.example.com:8883 standby.example.com:8883
bridge_cafile {ca}
bridge_certfile {cert}
bridge_keyfile {key}
bridge_tls_version tlsv1.2
bridge_protocol_version mqttv50
bridge_insecure false
remote_clientid plant-7
remote_username plant-7
remote_password s3cret
cleansession false
notifications true
notification_topic plants/7/online
keepalive_interval 30
restart_timeout 5 60
round_robin false
topic sensors/# out 1 "" plants/7/
topic commands/# in 2 "" plants/7/
topic "" out 1 status plants/7/status
topic shared/# both 1

# A modem, which is to be used seldom.
connection modem
address 192.0.2.7
start_type lazy
threshold 20
idle_timeout 120
try_private false
bridge_attempt_unsubscribe false
bridge_max_packet_size 10000
topic alarms/# out 2
"""

BRIDGE = """\
user {user}
persistence true
persistence_location {folder}/
connection cloud
address 127.0.0.1:{port}
restart_timeout 1
topic up/# out 1 "" plant/
topic down/# in 1 "" to-plant/
"""


ALL_BYTES = 1_000_000
"""More than a test carries."""


def imported(conf: Path, policy: Path) -> str:
    """Import a mosquitto.conf by the program; return what it has told."""
    command = [sys.executable, "-m", "penstock.broker.import_mosquitto", str(conf)]
    done = subprocess.run(
        [*command, "-o", str(policy)], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return done.stderr


def uplinks_of(policy: Path) -> dict[str, UplinkKeys]:
    """Return the uplinks of a policy file as the plugin reads them."""
    keys = load_policy(policy).plugins["uplink"]
    return validate_config(UplinkConfig, keys, str(policy), "plugins.uplink").uplinks


def test_a_file_with_two_bridges_is_one_with_two_uplinks(tmp_path: Path) -> None:
    """The plugin takes its keys; the password is in a file for its owner alone."""
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    conf, policy = tmp_path / "mosquitto.conf", tmp_path / "edge.yaml"
    text = TWO_BRIDGES.format(folder=tmp_path, ca=authority.cafile, cert=cert, key=key)
    conf.write_text(text)
    told = imported(conf, policy)
    assert [line.partition(": line")[2].split(":")[1] for line in told.splitlines()] == [
        " log_dest syslog",
        " connection cloud",
        ' topic commands/# in 2 "" plants/7/',
        " connection modem",
    ]
    cloud, modem = uplinks_of(policy).values()
    assert (cloud.maximum_packet_size, modem.maximum_packet_size) == (None, 10_000)
    assert cloud.upstream.addresses == ("cloud.example.com:8883", "standby.example.com:8883")
    assert cloud.upstream.tls is not None
    assert (cloud.upstream.tls.cafile, cloud.upstream.tls.certfile) == (authority.cafile, cert)
    assert (cloud.client_id, cloud.username, cloud.version) == ("plant-7", "plant-7", "5")
    assert [rule.remote_filter for rule in cloud.up] == [
        "plants/7/sensors/#",
        "plants/7/status",
        "shared/#",
    ]
    assert [(rule.remote_filter, rule.when) for rule in cloud.down] == [
        ("plants/7/commands/#", "always"),
        ("shared/#", "always"),
    ]
    assert cloud.password_file is not None
    password = Path(cloud.password_file)
    assert (password.read_text(), password.stat().st_mode & 0o777) == ("s3cret\n", 0o600)
    assert "s3cret" not in policy.read_text() + told
    assert (modem.start.when, modem.start.threshold_messages) == ("on_demand", 20)
    assert (modem.version, modem.bridge_bit) == ("3.1.1", False)
    assert modem.upstream.address == "192.0.2.7:1883"


async def take_payload(client: WireClient) -> bytes:
    """Return the payload of the next message, and acknowledge it."""
    while not isinstance(packet := await client.receive(), Publish):
        assert packet is not None
    if packet.qos:
        await client.send(PubAck(packet.packet_id))
    return bytes(packet.payload)


async def near_of(port: int) -> WireClient:
    """Return a client of the site that has a session there."""
    near = await connected(port, "near", 4, clean_start=False)
    await near.send(Subscribe(1, (SubscriptionRequest("down/#", 1),)))
    return near


async def test_a_site_with_a_bridge_moves_and_loses_nothing(tmp_path: Path) -> None:
    """By the steps of docs/how-to/migrate-bridge.md; what goes to the site waits in the cloud."""
    with reserved_port() as site, running_mosquitto(tmp_path) as cloud:
        async with metered_link(cloud.port) as link:
            await _move(tmp_path, site, cloud, link)


async def _move(tmp_path: Path, site: int, cloud: Mosquitto, link: MeteredLink) -> None:
    link.allow(ALL_BYTES)
    far = await connected(cloud.port, "far", 4)
    await far.subscribe("plant/#", 1)
    lines = BRIDGE.format(user=getpass.getuser(), folder=tmp_path, port=link.port)
    with running_mosquitto(tmp_path, lines, site):
        near = await near_of(site)
        await near.send(Publish("up/end", b"last of the bridge", qos=1, packet_id=2))
        assert await take_payload(far) == b"last of the bridge"
        await far.send(Publish("to-plant/down/a", b"by the bridge", qos=1, packet_id=1))
        assert await take_payload(near) == b"by the bridge"
        await until(lambda: link.n_acknowledged == 1)  # otherwise it comes twice
        link.stop()
        await far.send(Publish("to-plant/down/a", b"behind the cut", qos=1, packet_id=1))
        near.close()
    await far.send(Publish("to-plant/down/a", b"meanwhile", qos=1, packet_id=1))
    conf, file = tmp_path / f"mosquitto-{site}" / "mosquitto.conf", tmp_path / "edge.yaml"
    imported(conf, file)
    policy = yaml.safe_load(file.read_text())
    uplink = policy["plugins"]["uplink"]["uplinks"]["cloud"]
    uplink["start"] = {"when": "never"}
    with running_broker(policy, tmp_path) as broker:
        assert broker.port == site
        near = await near_of(site)
        await near.send(Publish("up/a", b"while held", qos=1, packet_id=2))
        while not isinstance(await near.receive(), PubAck):
            pass
        near.close()
        broker.stop()
    link.allow(ALL_BYTES)
    with running_broker(file.read_text(), tmp_path):
        near = await near_of(site)
        assert await take_payload(far) == b"while held"
        for payload in (b"behind the cut", b"meanwhile"):
            assert await take_payload(near) == payload
        await far.send(Publish("to-plant/down/a", b"after", qos=1, packet_id=2))
        assert await take_payload(near) == b"after"
        near.close()
    far.close()


async def test_an_imported_bridge_to_a_broker_without_bridges_falls_back(tmp_path: Path) -> None:
    """As mosquitto's does: aMQTT answers the bridge bit by return code 1."""
    with reserved_port() as site, running_amqtt(tmp_path) as cloud:
        conf, file = tmp_path / "mosquitto.conf", tmp_path / "edge.yaml"
        lines = BRIDGE.format(user=getpass.getuser(), folder=tmp_path, port=cloud)
        conf.write_text(
            f"listener {site} 127.0.0.1\nallow_anonymous true\n{lines}notifications false\n"
        )
        imported(conf, file)
        far = await connected(cloud, "far", 4)
        await far.send(Subscribe(1, (SubscriptionRequest("plant/#", 1),)))
        while not isinstance(await far.receive(), SubAck):
            pass
        with running_broker(file.read_text(), tmp_path):
            near = await near_of(site)
            await near.send(Publish("up/a", b"by a plain client", qos=1, packet_id=2))
            assert await take_payload(far) == b"by a plain client"
            near.close()
        far.close()
