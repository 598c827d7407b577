from __future__ import annotations

import shutil
import sys

import pytest

from penstock.netem.links.device_drops import DeviceDrops, device_drops
from penstock.netem.links.network import Network
from penstock.netem.links.profiles import OPEN
from tests.helpers.networks import NEEDS_ROOT

COLUMNS = "bytes packets errs drop fifo frame compressed multicast"
NET_DEV = f"""\
Inter-|   Receive  |  Transmit
 face |{COLUMNS}|{COLUMNS}
    lo:       9   9 0 9 0 0 0 0       9   9 0 9 0 0 0 0
 link0:  123456 100 0 3 0 0 0 0    1234  50 0 7 0 0 0 0
link12:       0   0 0 0 0 0 0 0       0   0 0 0 0 0 0 0
"""

QDISCS = """[{"kind":"noqueue","dev":"lo","root":true,"drops":4},
{"kind":"pfifo_fast","dev":"link0","root":true,"drops":5},
{"kind":"pfifo","dev":"link0","parent":"1:1","drops":5},
{"kind":"noqueue","dev":"link12","root":true}]"""

DATAGRAMS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(1_000):
    sock.sendto(bytes(100), (sys.argv[1], 9))
"""


@pytest.mark.parametrize(("tc", "sent"), [("/sbin/tc", 12), (None, 7)])
def test_drops_of_a_device_and_of_its_queueing_discipline_are_read(
    tc: str | None, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links alone are read; a discipline counts what its children drop; tc may be missing."""
    monkeypatch.setattr(shutil, "which", lambda _: tc)
    found = device_drops(lambda command: NET_DEV if command[0] == "cat" else QDISCS)
    assert found == {"link0": DeviceDrops(sent, 3), "link12": DeviceDrops()}


@NEEDS_ROOT
def test_what_a_short_device_queue_drops_is_counted() -> None:
    """The link itself loses nothing and has no rate."""
    with Network() as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        link = network.link(cloud, edge, OPEN)
        assert set(cloud.device_drops()) == {link.device}
        cloud.run(["ip", "link", "set", link.device, "txqueuelen", "1"])
        cloud.run([sys.executable, "-c", DATAGRAMS, edge.address])
        dropped = cloud.device_drops()[link.device].sent
        assert dropped > 0
        taken = link.counts()[1].taken
        while taken + dropped < 1_000:  # the forwarder has not read them all yet
            taken = link.counts()[1].taken
        assert (taken + dropped, link.counts()[1].dropped) == (1_000, 0)
