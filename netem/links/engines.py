"""What makes the links of a network: packets in user space, or the kernel's traffic control."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Final

from penstock.netem.errors import NetemError

TUN_DEVICE: Final = Path("/dev/net/tun")


class Engine(StrEnum):
    """What makes links.

    Attributes:
        AUTO: `TUN` if the kernel has TUN devices, otherwise `TC`. `TUN` comes first because the
            forwarder behaves the same on every kernel, loses the same packets for the same seed
            and counts each packet; our figures are made with it. `TC` reaches rates that a process
            in user space does not.
        TUN: a process that forwards packets between TUN devices (`penstock.netem.links.forwarder`).
        TC: pairs of veth devices with the queueing disciplines of the kernel
            (`penstock.netem.links.tc_link`).
    """

    AUTO = "auto"
    TUN = "tun"
    TC = "tc"


def instead_of_tc() -> str:
    """Return the advice for a kernel that lacks what the engine `Engine.TC` needs."""
    if TUN_DEVICE.exists():
        return f"use the engine {Engine.TUN}"
    return f"load it, or the kernel module tun for the engine {Engine.TUN}"


def choose_engine(asked: str) -> Engine:
    """Return the engine to use, never `Engine.AUTO`.

    Args:
        asked: name of an engine.

    Raises:
        NetemError: there is no such engine, or what it needs is not on this machine. What the
            kernel lacks for a profile is found out with the first link.
    """
    if asked not in set(Engine):
        raise NetemError(f"engine: read {asked!r}; allowed: {', '.join(Engine)}")
    engine = Engine(asked)
    if engine is Engine.AUTO:
        engine = Engine.TUN if TUN_DEVICE.exists() else Engine.TC
    elif engine is Engine.TUN and not TUN_DEVICE.exists():
        raise NetemError(
            f"{TUN_DEVICE} is missing; load the kernel module tun, or use the engine tc"
        )
    if engine is Engine.TC and shutil.which("tc") is None:
        raise NetemError("the program tc is missing; install iproute2, or use the engine tun")
    return engine
