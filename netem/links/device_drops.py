"""Packets that the queues of a host's own devices dropped, which are losses of the harness.

A TUN device drops what the forwarder does not fetch in time, and counts it as dropped in
transmission. A queueing discipline before a device counts its own drops.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

DEVICE_PREFIX = "link"
"""The prefix of the devices of links; a host's other devices carry no traffic between hosts."""


class DeviceDrops(NamedTuple):
    """Packets that a device dropped.

    Attributes:
        sent: the packets dropped that the host sent, before they entered the link.
        received: the packets dropped after they left the link.
    """

    sent: int = 0
    received: int = 0


def device_drops(run: Callable[[list[str]], str]) -> dict[str, DeviceDrops]:
    """Return what the devices of a host's links have dropped, by the device's name."""
    found = parse_net_dev(run(["cat", "/proc/net/dev"]))
    if shutil.which("tc") is None:
        return found
    queues = parse_qdiscs(run(["tc", "-s", "-j", "qdisc", "show"]))
    return {
        device: each._replace(sent=each.sent + queues.get(device, 0))
        for device, each in found.items()
    }


def parse_net_dev(text: str) -> dict[str, DeviceDrops]:
    """Return the drops of links' devices in /proc/net/dev, which has two lines of heads."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        # Eight columns of what was received, eight of what was sent; the fourth of each is drop.
        fields = numbers.split()
        if name.strip().startswith(DEVICE_PREFIX):
            found[name.strip()] = DeviceDrops(sent=int(fields[11]), received=int(fields[3]))
    return found


def parse_qdiscs(text: str) -> dict[str, int]:
    """Return the drops of queueing disciplines by device, from the output of ``tc -s -j qdisc``.

    A discipline counts what its children drop, so the root alone is read.
    """
    drops: Counter[str] = Counter()
    for qdisc in json.loads(text or "[]"):
        if qdisc.get("root"):
            drops[qdisc["dev"]] += qdisc.get("drops", 0)
    return dict(drops)
