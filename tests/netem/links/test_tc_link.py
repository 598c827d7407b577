from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links import tc_link
from penstock.netem.links.link_variation import OnOff
from penstock.netem.links.namespaces import own_prefix, run_ip
from penstock.netem.links.network import Host, Network
from penstock.netem.links.profiles import OPEN, Bursts, Direction, Profile
from penstock.netem.links.tc_commands import impairment_words, rate_words
from penstock.netem.links.tc_link import Wires, run_tc
from tests.helpers.networks import NEEDS_ROOT, joined

pytestmark = NEEDS_ROOT

NO_NETEM = r"tc: this kernel has no sch_netem \(.*\); use the engine tun"

SLOW = Profile("slow", Direction(rate=1e6), Direction(rate=1_500, queue_bytes=20_000))
"""Downstream a full packet takes a second: longer than many take to come."""

LOSES = Profile("loses", Direction(loss=0.2), Direction())

BURST = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    sock.sendto(bytes(1_472), (sys.argv[1], 9))
"""
"""Sends so many datagrams of 1,500 bytes with their headers, as fast as it can."""


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace with nothing in it."""
    name = f"{own_prefix()}tc"
    run_ip("netns", "add", name)
    yield name
    run_ip("netns", "delete", name)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network of the engine tc, without hosts."""
    with Network(engine="tc") as made:
        yield made


def send_burst(host: Host, address: str, count: int) -> None:
    """Send so many full packets that nobody awaits."""
    host.run([sys.executable, "-c", BURST, address, str(count)])


@pytest.mark.parametrize(
    "direction",
    [
        Direction(),
        Direction(0.05, jitter=0.01),
        Direction(loss=0.2),
        Direction(loss=Bursts(0.01, 0.25, 0.9, 0.001)),
        Direction(0.05, reorder=0.1, duplicate=0.1),
    ],
    ids=lambda direction: impairment_words(direction)[6:-2],
)
def test_tc_understands_what_it_is_told_of_netem(namespace: str, direction: Direction) -> None:
    """It is done, or the kernel alone refuses it: tc reads words before it asks the kernel."""
    try:
        run_tc(namespace, "qdisc", "replace", "dev", "lo", *impairment_words(direction))
    except NetemError as error:
        assert "Specified qdisc kind is unknown" in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("rate", [100, 1_000, 2.5e6, 1.25e9, None])
def test_tc_carries_each_rate_that_is_allowed(namespace: str, rate: float | None) -> None:
    """What the kernel says back is the rate in bytes per second, and room for a packet."""
    run_tc(namespace, "qdisc", "replace", "dev", "lo", *rate_words(Direction(rate=rate)))
    said = run_tc(namespace, "-j", "qdisc", "show", "dev", "lo")
    assert f'"rate":{10_000_000_000 if rate is None else int(rate)},' in said
    assert int(said.partition('"burst":')[2].partition(",")[0]) >= 2_900


def test_a_packet_waits_for_the_rate_or_is_dropped_where_the_queue_is_full(
    network: Network,
) -> None:
    """Of 50 full packets at once, 20,000 bytes and a burst of two pass; each is counted once."""
    cloud, _, link = joined(network, SLOW)
    send_burst(cloud, link.client_address, 50)
    while (downstream := link.counts()[1]).taken < 50:
        pass
    # The queue holds 13; a few more may leave while they come.
    assert 30 <= downstream.dropped <= 35
    assert downstream.delivered <= 20
    link.switch(OPEN)
    while downstream.delivered + downstream.dropped < 50:
        _, downstream = link.counts()
    assert (downstream.taken, downstream.lost, downstream.duplicated) == (50, 0, 0)


def test_what_waits_survives_a_change(network: Network) -> None:
    """A queue that a slow link has filled is sent when it is fast, not thrown away."""
    slow = Profile("slow", Direction(), Direction(rate=1_000, queue_bytes=200_000))
    cloud, _, link = joined(network, slow)
    send_burst(cloud, link.client_address, 100)
    assert link.counts()[1].delivered < 10
    link.switch(OPEN)
    while (downstream := link.counts()[1]).delivered < 100:
        assert downstream.dropped == 0
    assert [name for _, name in link.log()] == ["slow", "open"]


def test_a_link_loses_its_share_or_the_kernel_is_named(network: Network) -> None:
    """With sch_netem 20 % of packets are lost one way; without it the error says so."""
    cloud, edge = network.host("cloud"), network.host("edge")
    try:
        link = network.link(cloud, edge, LOSES)
    except NetemError as error:
        assert "profile 'loses': tc: this kernel has no sch_netem" in str(error)  # noqa: PT017
        return
    send_burst(edge, link.server_address, 2_000)
    send_burst(cloud, link.client_address, 500)
    upstream, downstream = link.counts()
    assert upstream.lost / upstream.taken == pytest.approx(0.2, abs=0.06)
    assert downstream.lost == 0


def test_a_link_never_becomes_what_tc_cannot_do(network: Network) -> None:
    """Neither by a switch nor by a plan, however far in the future; it stays as it is."""
    _, _, link = joined(network, SLOW)
    too_slow = Profile("too slow", Direction(rate=1.0), Direction())
    refused = "tc: rate: read 1; allowed: at least 100"
    with pytest.raises(NetemError, match=refused):
        link.switch(too_slow)
    with pytest.raises(NetemError, match=refused):
        link.follow(OnOff(SLOW, too_slow, 1e6, 1.0))
    assert [name for _, name in link.log()] == ["slow"]


@pytest.mark.parametrize("module", ["sch_tbf", "cls_u32"])
def test_what_the_kernel_lacks_for_any_link_is_named(
    namespace: str, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """One line: the module, the kernel's words, and the engine that needs none."""
    monkeypatch.setitem(tc_link.PROBES, module, "qdisc replace dev lo root none-such")
    with pytest.raises(NetemError, match=rf"^tc: this kernel has no {module} \(.+\); use the"):
        Wires(namespace)


def test_without_netem_only_profiles_that_need_it_are_refused(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate with its queue is carried by tbf alone."""
    monkeypatch.setitem(tc_link.PROBES, "sch_netem", "qdisc replace dev lo root none-such")
    wires = Wires(namespace)
    wires.check(SLOW)
    with pytest.raises(NetemError, match=f"profile 'loses': {NO_NETEM}"):
        wires.check(LOSES)


def test_each_link_stays_on_one_processor(network: Network) -> None:
    """Packets that two processors handle would overtake each other."""
    cloud, _, _ = joined(network, OPEN)
    file = Path("/sys/class/net/link0/queues/rx-0/rps_cpus")
    mask = cloud.run(["sh", "-c", f"[ ! -e {file} ] && echo 1 || cat {file}"]).replace(",", "")
    assert int(mask, 16).bit_count() == 1
