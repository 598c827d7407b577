"""The five lines of docs/how-to/edge.md on a slow link: an alarm passes the pictures before it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from penstock.netem.links.network import Host, Network
from penstock.netem.links.profiles import Direction, Profile
from penstock.netem.runs.broker_process import (
    ENVIRONMENT,
    find_program,
    mosquitto_command,
    penstock_command,
)
from tests.helpers.networks import NEEDS_ROOT, joined
from tests.helpers.process import ROOT, SECONDS, Program, anonymous_policy

pytestmark = NEEDS_ROOT

N_PICTURES: Final = 6
PICTURE_BYTES: Final = 200_000
LINK: Final = Profile("slow", Direction(0.02, 400e3), Direction(0.02, 400e3))
"""Each picture takes half a second."""

PORT, BALANCER_PORT = 1883, 1884
BALANCER: Final = f"""\
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen mqtt
  bind :{BALANCER_PORT}
  server broker 127.0.0.1:{PORT}
"""

BRIDGE: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
connection cloud
address {address}
topic sensors/# out 1
"""


def five_lines() -> str:
    """Return the first block of the page, with an end that takes no other line."""
    page = (ROOT / "docs" / "how-to" / "edge.md").read_text()
    found = re.search(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found
    assert found[1].count("\n") == 5
    return found[1]


@contextlib.contextmanager
def running(host: Host, command: Sequence[str], folder: Path) -> Iterator[Program]:
    """Run a program on a host of a network for a block."""
    program = Program(
        ["ip", "netns", "exec", host.namespace, *command], cwd=folder, env=ENVIRONMENT
    )
    try:
        yield program
    finally:
        program.kill()


@pytest.fixture
def network() -> Iterator[Network]:
    """A network without hosts."""
    with Network(seed=1) as made:
        yield made


@contextlib.contextmanager
def running_cloud(cloud: Host, kind: str, folder: Path) -> Iterator[None]:
    """Run a broker and HAProxy before it, on one host, for a block."""
    folder.mkdir()
    if kind == "mosquitto":
        lines = [f"listener {PORT} 0.0.0.0", "allow_anonymous true", "max_queued_messages 0"]
        command = mosquitto_command(folder, lines)
    else:
        policy = anonymous_policy(listeners={"default": {"bind": f"0.0.0.0:{PORT}"}})
        command = penstock_command(folder, policy)
    (folder / "haproxy.cfg").write_text(BALANCER)
    balancer = [find_program("haproxy"), "-db", "-f", "haproxy.cfg"]
    with running(cloud, command, folder) as broker, running(cloud, balancer, folder):
        broker.wait_for_log("running" if kind == "mosquitto" else "listening on")
        yield


def sizes_in_order(cloud: Host, edge: Host, folder: Path) -> list[int]:
    """Return the sizes of what arrives, in order: six pictures are published, then an alarm."""
    taker = [find_program("mosquitto_sub"), "-p", str(PORT), "-i", "taker", "-c", "-q", "1"]
    taker += ["-t", "sensors/#", "-V", "5", "-x", "600"]
    assert cloud.popen([*taker, "-E"]).wait(SECONDS) == 0  # what comes then waits for it
    (folder / "picture").write_bytes(b"p" * PICTURE_BYTES)
    publisher = [find_program("mosquitto_pub"), "-q", "1"]
    picture = ["-t", "sensors/camera", "-f", str(folder / "picture"), "--repeat", str(N_PICTURES)]
    for message in (picture, ["-t", "sensors/alarm", "-m", "fire"]):
        assert edge.popen([*publisher, *message]).wait(SECONDS) == 0
    got = cloud.popen([*taker, "-C", str(N_PICTURES + 1), "-F", "%l"], stdout=subprocess.PIPE)
    return [int(line) for line in got.communicate(timeout=SECONDS)[0].split()]


@pytest.mark.parametrize("port", [PORT, BALANCER_PORT])
@pytest.mark.parametrize("kind", ["penstock", "mosquitto"])
def test_an_alarm_of_the_page_s_site_passes_pictures(
    kind: str, port: int, network: Network, tmp_path: Path
) -> None:
    """By a second connection, which the uplink has by itself; also behind a load balancer."""
    cloud, edge, link = joined(network, LINK)
    text = five_lines().replace("cloud.example:1883", f"{link.server_address}:{port}")
    assert link.server_address in text
    (tmp_path / "edge.yaml").write_text(text)
    command = [sys.executable, "-m", "penstock", "proxy", "--mode", "edge", "-c", "edge.yaml"]
    with running_cloud(cloud, kind, tmp_path / kind), running(edge, command, tmp_path) as site:
        for client_id in ("berlin-cloud", "berlin-cloud-large"):
            site.wait_for_match(rf"connected to \S+ as {client_id}\n")
        sizes = sizes_in_order(cloud, edge, tmp_path)
    assert sorted(sizes) == [4, *[PICTURE_BYTES] * N_PICTURES]
    assert sizes.index(4) <= 1  # one may have come before it was published


def test_an_alarm_of_an_imported_bridge_passes_pictures_that_have_not_begun(
    network: Network, tmp_path: Path
) -> None:
    """It speaks MQTT 3.1.1 as mosquitto does, and has one connection: small ones go first."""
    cloud, edge, link = joined(network, LINK)
    conf = BRIDGE.format(port=PORT, address=f"{link.server_address}:{PORT}")
    (tmp_path / "mosquitto.conf").write_text(conf)
    importer = [sys.executable, "-m", "penstock.broker.import_mosquitto", "mosquitto.conf"]
    subprocess.run([*importer, "-o", "edge.yaml"], cwd=tmp_path, check=True, env=ENVIRONMENT)
    command = [sys.executable, "-m", "penstock", "broker", "-c", "edge.yaml"]
    with (
        running_cloud(cloud, "mosquitto", tmp_path / "cloud"),
        running(edge, command, tmp_path) as site,
    ):
        site.wait_for_match(r"connected to \S+ as ")
        sizes = sizes_in_order(cloud, edge, tmp_path)
    assert sorted(sizes) == [4, *[PICTURE_BYTES] * N_PICTURES]
    assert sizes.index(4) <= 2  # behind the one on its way
