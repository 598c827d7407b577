from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError, RunError
from penstock.netem.links import network as network_module
from penstock.netem.links.channel import Counts
from penstock.netem.links.congestion_control import ALLOWED, AVAILABLE
from penstock.netem.links.forwarder_messages import Lateness
from penstock.netem.links.link_variation import OnOff, Trace
from penstock.netem.links.namespaces import FOLDER, own_prefix, start_time_of
from penstock.netem.links.network import Host, Network
from penstock.netem.links.profiles import OPEN, Direction, Profile
from tests.helpers.networks import NEEDS_ROOT, joined
from tests.helpers.process import SECONDS

pytestmark = NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[3]

ECHO = """
import socket
server = socket.create_server(("", 7))
print("listening", flush=True)
sock, _ = server.accept()
while data := sock.recv(1 << 16):
    sock.sendall(data)
"""
"""Sends back what comes on one connection."""

CLIENT = """
import random, socket, sys, threading
data = random.Random(1).randbytes(int(sys.argv[2]))
sock = socket.create_connection((sys.argv[1], 7))
threading.Thread(target=sock.sendall, args=(data,)).start()
got = bytearray()
while len(got) < len(data):
    got += sock.recv(1 << 16)
print("same" if got == data else "other")
"""
"""Sends so many bytes and compares what comes back."""

DATAGRAMS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    sock.sendto(bytes(100), (sys.argv[1], 9))
"""
"""Sends so many datagrams that nobody awaits."""

OWNER = """
import signal, sys, time
from penstock.netem.links import namespaces
from penstock.netem.links.network import Network
from penstock.netem.links.profiles import OPEN
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
namespaces.NAME_PREFIX = sys.argv[1]
with Network() as network:
    cloud, edge = network.host("cloud"), network.host("edge")
    network.link(cloud, edge, OPEN)
    sleeping = cloud.popen(["sleep", "1000"])
    print(cloud.namespace, network.forwarder_pid, sleeping.pid, flush=True)
    time.sleep(1000)
"""
"""A program with a network that it holds until it is ended."""


SLOW = Profile("slow", Direction(rate=1e6), Direction(rate=1e6))
SLOWER = Profile("slower", Direction(rate=5e5), Direction(rate=5e5))


@pytest.fixture
def network() -> Iterator[Network]:
    """A network without hosts."""
    with Network(seed=1) as made:
        yield made


def python(text: str, *arguments: str) -> list[str]:
    """Return the command of a small program."""
    return [sys.executable, "-c", text, *arguments]


def wait_until(condition: Callable[[], bool]) -> None:
    """Come back once it holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Say whether there is such a process that has not ended."""
    return start_time_of(pid) is not None


def our_devices(pid: int) -> list[str]:
    """Return the devices of a process that are not in a namespace."""
    return [each.name for each in Path("/sys/class/net").glob(f"pnst{pid}.*")]


def start_server(host: Host, text: str) -> None:
    """Start a small program, and wait for it to listen."""
    server = host.popen(python(text), stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"


def start_echo(host: Host) -> None:
    """Start what sends back, and wait for it to listen."""
    start_server(host, ECHO)


@pytest.mark.parametrize(
    "profile",
    [
        OPEN,
        Profile(
            "hard",
            Direction(0.002, 2e6, jitter=0.001, loss=0.05, reorder=0.05, duplicate=0.05),
            Direction(0.002, 2e6, jitter=0.001, loss=0.05, reorder=0.05, duplicate=0.05),
        ),
    ],
    ids=lambda profile: profile.name,
)
def test_tcp_carries_bytes_unchanged_over_whatever_link(network: Network, profile: Profile) -> None:
    """What is lost, late, doubled or overtaken is mended by the kernels' real TCP."""
    cloud, edge, link = joined(network, profile)
    start_echo(cloud)
    assert edge.run(python(CLIENT, link.server_address, "300000")) == "same\n"
    upstream, downstream = link.counts()
    assert upstream.taken > 200
    if profile is not OPEN:
        assert downstream.lost > 0
        assert downstream.duplicated > 0
        assert downstream.overtaking > 0


def test_tcp_goes_as_fast_as_the_link(network: Network) -> None:
    """What is sent comes back whole, in packets of Ethernet's size, all of them counted."""
    cloud, edge, link = joined(network, SLOW)
    start_echo(cloud)
    began_at = time.monotonic()
    assert edge.run(python(CLIENT, link.server_address, "300000")) == "same\n"
    assert time.monotonic() - began_at > 0.25
    # What the client has got is still to be acknowledged.
    wait_until(lambda: all(each.delivered + each.dropped == each.taken for each in link.counts()))
    for counts in link.counts():
        assert counts.taken >= 300_000 / 1_460
        assert (counts.lost, counts.duplicated) == (0, 0)
        # With IP headers, and without those of Ethernet.
        assert 300_000 < counts.carried_bytes <= 1_500 * counts.delivered


def test_each_direction_loses_its_own_share(network: Network) -> None:
    """Upstream loses 20 % of 1,500 datagrams, and downstream none."""
    cloud, edge, link = joined(network, Profile("up", Direction(loss=0.2), Direction()))
    edge.run(python(DATAGRAMS, link.server_address, "1500"))
    cloud.run(python(DATAGRAMS, link.client_address, "1500"))

    def counts() -> tuple[Counts, Counts]:
        return link.counts()

    # A host answers a datagram to a closed port, now and then: RFC 1122 asks for it.
    wait_until(lambda: all(each.taken >= 1_500 for each in counts()))
    upstream, downstream = counts()
    assert upstream.lost / upstream.taken == pytest.approx(0.2, abs=0.06)
    assert downstream.lost == 0


def test_hosts_are_alone_but_for_their_links(network: Network) -> None:
    """A host has loopback and its links, and no way anywhere else."""
    cloud, edge, link = joined(network, OPEN)
    network.host("far")
    second = network.link(cloud, network.host("near"), OPEN)
    assert len({link.server_address, link.client_address, second.server_address}) == 3
    assert cloud.run(["ls", "/sys/class/net"]).split() == ["link0", "link1", "lo"]
    assert edge.run(["ls", "/sys/class/net"]).split() == ["link0", "lo"]
    with pytest.raises(NetemError, match="unreachable"):
        edge.run(python(DATAGRAMS, second.client_address, "1"))


def echoes(host: Host, address: str) -> bool:
    """Say whether a connection to the address carries bytes there and back."""
    return host.run(python(CLIENT, address, "20000")) == "same\n"


def test_hosts_that_a_link_joins_reach_each_other(network: Network) -> None:
    """By the address of the host, without being asked to pass anything on."""
    cloud, edge, _ = joined(network, OPEN)
    assert network.address(edge, cloud) == cloud.address
    start_echo(cloud)
    assert echoes(edge, cloud.address)


def test_hosts_reach_each_other_over_hosts_in_between(network: Network) -> None:
    """A connection over three links of different rates; each host is the same to all others."""
    names = ("sensors", "gateway", "relay", "cloud")
    sensors, gateway, relay, cloud = (network.host(name) for name in names)
    links = [
        network.link(gateway, sensors, SLOW),
        network.link(relay, gateway, SLOWER),
        network.link(cloud, relay, OPEN),
    ]
    network.route()
    assert len({host.address for host in (sensors, gateway, relay, cloud)}) == 4
    for server, client in ((cloud, sensors), (sensors, cloud), (relay, sensors)):
        assert network.address(client, server) == server.address
        start_echo(server)
        assert echoes(client, server.address)
    for link in links:
        assert min(counts.delivered for counts in link.counts()) > 20


def test_a_connection_over_two_impaired_links_is_mended_end_to_end(network: Network) -> None:
    """Delay and loss of both add up; what either loses is sent again by the first host."""
    sensors, gateway, cloud = (network.host(name) for name in ("sensors", "gateway", "cloud"))
    near, far = Direction(0.002, loss=0.02), Direction(0.005, 2e6, jitter=0.002, loss=0.05)
    links = [
        network.link(gateway, sensors, Profile("near", near, near)),
        network.link(cloud, gateway, Profile("far", far, far)),
    ]
    # It is enough to ask for the address.
    address = network.address(sensors, cloud)
    start_echo(cloud)
    assert sensors.run(python(CLIENT, address, "300000")) == "same\n"
    for link in links:
        assert min(counts.lost for counts in link.counts()) > 0


def test_an_address_that_cannot_be_reached_is_an_error_only_when_asked_for(
    network: Network,
) -> None:
    """Both hosts are named; a link made later joins them."""
    cloud, edge, _ = joined(network, OPEN)
    alone = network.host("alone")
    network.route()
    with pytest.raises(NetemError, match="no links connect host 'alone' with host 'cloud'"):
        network.address(alone, cloud)
    network.link(edge, alone, OPEN)
    start_echo(cloud)
    assert echoes(alone, network.address(alone, cloud))


def test_a_host_is_not_linked_to_itself(network: Network) -> None:
    """The text names it."""
    cloud = network.host("cloud")
    with pytest.raises(NetemError, match="link: read 'cloud' twice; allowed: two hosts"):
        network.link(cloud, cloud, OPEN)


def test_hosts_have_their_own_congestion_control(network: Network) -> None:
    """It is what was asked for by host, and cubic where nothing was, whatever the machine's is."""
    file = "/proc/sys/net/ipv4/tcp_congestion_control"
    before = Path(file).read_text()
    assert network.host("plain").run(["cat", file]) == "cubic\n"
    assert network.host("other", congestion_control="reno").run(["cat", file]) == "reno\n"
    assert Path(file).read_text() == before


SOCKET = """
import os, socket, sys
if sys.argv[1] == "nobody":
    os.setuid(65534)
sock = socket.socket()
for name in sys.argv[2:]:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
"""
"""Says what congestion control a socket has, after it was given others."""


def test_a_socket_has_its_hosts_congestion_control_or_its_own(network: Network) -> None:
    """Without privileges too; root may give a socket whatever the machine has."""
    host = network.host("cloud", congestion_control="cubic")
    for user in ("root", "nobody"):
        assert host.run(python(SOCKET, user)) == "cubic\n"
    for name in AVAILABLE.read_text().split():
        assert host.run(python(SOCKET, "root", name)) == f"{name}\n"
    for name in ALLOWED.read_text().split():
        assert host.run(python(SOCKET, "nobody", name)) == f"{name}\n"


LISTEN = """
import socket
server = socket.create_server(("", 7))
print("listening", flush=True)
while True:
    sock, _ = server.accept()
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    sock.sendall(name.rstrip(b"\\0"))
    sock.close()
"""
"""Tells each client the congestion control of its connection, at this end."""

CONNECT = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 7))
name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0")
print(name.decode(), sock.recv(16).decode())
"""


def test_a_link_may_have_a_congestion_control_of_its_own(network: Network) -> None:
    """At both ends of each connection over it, accepted ones included; behind a host, too."""
    cloud, near, router, far = (network.host(name) for name in ("cloud", "near", "router", "far"))
    network.link(cloud, near, OPEN)
    network.link(cloud, router, OPEN, congestion_control="reno")
    network.link(router, far, OPEN, congestion_control="reno")
    network.route()
    start_server(cloud, LISTEN)
    assert near.run(python(CONNECT, cloud.address)) == "cubic cubic\n"
    assert far.run(python(CONNECT, cloud.address)) == "reno reno\n"
    with pytest.raises(NetemError, match="congestion control: read 'warp'; allowed here: "):
        network.link(near, far, OPEN, congestion_control="warp")


def test_a_link_follows_a_plan_until_it_is_switched(network: Network) -> None:
    """The log has each change with its name, in order; a switch ends the plan."""
    _, _, link = joined(network, OPEN)
    trace = Trace((0.0, 1.0, 2.0, 1e6), (SLOW, SLOWER, SLOW, OPEN))
    link.follow(trace, time.monotonic() - 3)
    assert [name for _, name in link.log()] == ["open", "slow", "slower", "slow"]
    link.follow(OnOff(SLOW, SLOWER, 0.001, 0.001, seed=1))
    wait_until(lambda: len(link.log()) > 20)
    link.switch(OPEN)
    log = link.log()
    assert [at for at, _ in log] == sorted(at for at, _ in log)
    assert log[-1][1] == "open"
    assert link.log() == log


def test_late_deliveries_are_counted_and_the_latest_since_the_last_question_told(
    network: Network,
) -> None:
    """A forwarder that does not run for longer than the delay delivers late, and says so."""
    cloud, edge = network.host("cloud"), network.host("edge")
    link = network.link(cloud, edge, Profile("far", Direction(), Direction(delay=0.02)))
    network.lateness()
    cloud.run(python(DATAGRAMS, edge.address, "1"))
    wait_until(lambda: link.counts()[1].taken == 1)
    os.kill(network.forwarder_pid, signal.SIGSTOP)
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() > begin + 0.1)
    os.kill(network.forwarder_pid, signal.SIGCONT)
    wait_until(lambda: link.counts()[1].delivered == 1)
    before_last = network.lateness()
    assert before_last.deliveries >= before_last.late_deliveries
    assert network.lateness() == Lateness(before_last.deliveries, before_last.late_deliveries, 0.0)


def test_a_forwarder_that_has_ended_is_a_failure_and_no_mistake(network: Network) -> None:
    """Whoever asks a link for something is told; it is not what was asked for that was wrong."""
    _, _, link = joined(network, OPEN)
    os.kill(network.forwarder_pid, signal.SIGKILL)
    with pytest.raises(RunError, match="the forwarder has ended"):
        link.log()


def test_a_forwarder_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network ends whatever its forwarder does, and nothing of it is left."""
    monkeypatch.setattr(network_module, "CLOSE_SECONDS", 0.2)
    with Network() as network:
        cloud, _, _ = joined(network, OPEN)
        forwarder = network.forwarder_pid
        os.kill(forwarder, signal.SIGSTOP)
    assert not is_running(forwarder)
    assert not (FOLDER / cloud.namespace).exists()
    assert our_devices(os.getpid()) == []


@pytest.mark.parametrize(
    ("name", "congestion_control", "named"),
    [
        ("cloud", None, "allowed: a name that no other host has"),
        ("", None, "allowed: letters"),
        ("a/b", None, "allowed: letters"),
        ("edge", "none-such", "congestion control: read 'none-such'; allowed here: "),
    ],
)
def test_a_host_that_cannot_be_is_refused(
    network: Network, name: str, congestion_control: str | None, named: str
) -> None:
    """The text says what was read and what is allowed."""
    network.host("cloud")
    with pytest.raises(NetemError, match=named):
        network.host(name, congestion_control=congestion_control)


def test_a_network_that_is_not_up_has_no_hosts() -> None:
    """Before its context is entered nothing can be made."""
    with pytest.raises(NetemError, match="enter its context"):
        Network().host("cloud")


def test_a_command_that_fails_is_told(network: Network) -> None:
    """What the command said is in the error."""
    with pytest.raises(NetemError, match="No such file"):
        network.host("cloud").run(["cat", "/none/such"])


def test_nothing_is_left_when_the_context_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes, devices and namespaces go, also after an exception."""

    class AbandonedError(Exception):
        pass

    monkeypatch.setattr(network_module, "STOP_SECONDS", 0.2)
    with (  # noqa: PT012 - both are one
        pytest.raises(AbandonedError),
        Network() as network,
    ):
        cloud, _, _ = joined(network, OPEN)
        forwarder = network.forwarder_pid
        polite = cloud.popen(["sleep", "1000"])
        stubborn = cloud.popen(["sh", "-c", "trap '' TERM; sleep 1000 & wait"])
        raise AbandonedError
    assert (polite.returncode, stubborn.returncode) != (None, None)
    assert not is_running(forwarder)
    assert not list(FOLDER.glob(f"{own_prefix()}*"))
    assert not our_devices(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_program_is_killed(number: signal.Signals, own_names: str) -> None:
    """The forwarder takes down what its program did not."""
    command = python(OWNER, own_names)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        namespace, forwarder, sleeping = owner.stdout.readline().decode().split()
        assert (FOLDER / namespace).exists()
        owner.send_signal(number)
    wait_until(lambda: not is_running(int(forwarder)))
    assert not is_running(int(sleeping))
    assert not list(FOLDER.glob(f"{own_names}{owner.pid}-*"))
    assert not our_devices(owner.pid)


def test_nothing_is_left_when_the_terminal_is_closed(own_names: str) -> None:
    """All of its processes are told, the forwarder too; brokers take it as a wish to read again."""
    command = python(OWNER, own_names)
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        namespace, forwarder, _ = owner.stdout.readline().decode().split()
        os.killpg(owner.pid, signal.SIGHUP)
    wait_until(lambda: not is_running(int(forwarder)))
    assert not (FOLDER / namespace).exists()


def test_what_a_crash_has_left_is_removed_by_the_next_network(own_names: str) -> None:
    """Program and forwarder are killed at once: the next start removes their namespaces."""
    command = python(OWNER, own_names)
    with Network() as living:
        mine = living.host("mine")
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            namespace, forwarder, sleeping = owner.stdout.readline().decode().split()
            os.kill(int(forwarder), signal.SIGKILL)
            owner.kill()
        assert (FOLDER / namespace).exists()
        assert is_running(int(sleeping))
        with Network():
            assert not list(FOLDER.glob(f"{own_names}{owner.pid}-*"))
            assert (FOLDER / mine.namespace).exists()
    wait_until(lambda: not is_running(int(sleeping)))


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    """As it stands there: messages come over a link that is bad now and then."""
    text = (ROOT / "docs/how-to/netem.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        python(example),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *messages, log = done.stdout.splitlines()
    assert messages == ["hello"] * 5
    assert "lossy" in log
