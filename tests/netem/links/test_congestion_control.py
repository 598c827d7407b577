from __future__ import annotations

from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.congestion_control import ALLOWED, AVAILABLE, set_congestion_control
from penstock.netem.links.network import Network
from tests.helpers.networks import NEEDS_ROOT

pytestmark = NEEDS_ROOT


def test_each_one_that_the_machine_has_can_be_chosen_and_the_machine_stays_as_it_was() -> None:
    """What is allowed to everybody is the same afterwards."""
    before = ALLOWED.read_text()
    with Network() as network:
        host = network.host("cloud")
        for name in AVAILABLE.read_text().split():
            set_congestion_control(name, host.run)
            chosen = host.run(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
            assert chosen == f"{name}\n"
    assert sorted(ALLOWED.read_text().split()) == sorted(before.split())


def test_one_that_the_machine_does_not_have_is_refused() -> None:
    """The text names those that it has; nothing is run."""

    def run(command: list[str]) -> str:
        raise AssertionError(command)

    with pytest.raises(NetemError, match=r"read 'none-such'; allowed here: .*reno"):
        set_congestion_control("none-such", run)
    assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text() != "none-such\n"
