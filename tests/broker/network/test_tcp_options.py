from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.network import tcp_options
from penstock.broker.network.tcp_options import (
    CongestionControlError,
    Retransmissions,
    give_up_ms,
    plan_retransmissions,
    set_congestion_control,
    set_give_up,
    set_pacing_rate,
    set_retransmissions,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    """A socket of TCP that does not listen yet."""
    with socket.socket() as made:
        yield made


UNKNOWN_OPTION = 10_000
"""A number of an option that no kernel knows."""


def plan_or_skip(seconds: float) -> Retransmissions:
    """Return what is planned, where the kernel of this machine takes it."""
    plan = plan_retransmissions(seconds)
    if plan is None:
        pytest.skip(f"needs {tcp_options.RTO_MAX_SINCE}")
    return plan


def kernel(folder: Path, **settings: int) -> Path:
    """Return a folder that says what a kernel's of TCP says."""
    for name, value in settings.items():
        (folder / name).write_text(f"{value}\n")
    return folder


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Be nobody for a block, where the tests are run by root."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(was)


def names(which: str) -> list[str]:
    """Return the kernel's list of congestion controls, such as those `available`."""
    file = Path(f"/proc/sys/net/ipv4/tcp_{which}_congestion_control")
    return file.read_text().split() if file.exists() else []


# By hand: 0.2, 0.4, ... 102.4 s are ten times between retransmissions and 204.6 s; six of 120 s
# follow. Up to 51.2 s nine are 102.2 s. With 5 s at most: 0.2, 0.4, 0.8, 1.6, 3.2, eleven of 5.
@pytest.mark.parametrize(
    ("n_retries", "rto_max_ms", "expected"),
    [
        (15, 120_000, 924_600),
        (8, 120_000, 102_200),
        (3, 120_000, 3_000),
        (0, 120_000, 200),
        (15, 5_000, 61_200),
    ],
)
def test_how_long_the_kernel_takes_to_give_up(
    n_retries: int, rto_max_ms: int, expected: int
) -> None:
    """As ip-sysctl of its documentation has it: 924.6 s for the fifteen that Linux comes with."""
    assert give_up_ms(n_retries, rto_max_ms) == expected


@pytest.mark.parametrize(
    ("settings", "retries", "orphan_retries"),
    [
        ({"tcp_retries2": 15, "tcp_orphan_retries": 0}, 15, 8),
        ({"tcp_retries2": 8, "tcp_orphan_retries": 3}, 8, 3),
        ({}, 15, 8),
    ],
)
def test_connections_are_given_up_when_the_system_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, int],
    retries: int,
    orphan_retries: int,
) -> None:
    """However often it is sent again; by what Linux comes with where that is hidden."""
    monkeypatch.setattr(tcp_options, "_SYSCTLS", kernel(tmp_path, **settings))
    plan = plan_or_skip(2.5)
    with socket.socket() as sock:
        systems_ms = sock.getsockopt(socket.IPPROTO_TCP, tcp_options._TCP_RTO_MAX_MS)
    assert plan == Retransmissions(
        2_500, give_up_ms(retries, systems_ms), give_up_ms(orphan_retries, systems_ms)
    )


def test_kernel_before_6_15_lets_nothing_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket does not know the option."""
    monkeypatch.setattr(tcp_options, "_TCP_RTO_MAX_MS", UNKNOWN_OPTION)
    assert plan_retransmissions(2.5) is None


@pytest.mark.parametrize("seconds", [1, 2.5, 120])
def test_plan_is_one_that_the_kernel_takes(sock: socket.socket, seconds: float) -> None:
    """Every time that a policy file may have; the kernel gives up by what was planned."""
    plan = plan_or_skip(seconds)
    set_retransmissions(sock, plan)
    assert sock.getsockopt(socket.IPPROTO_TCP, tcp_options._TCP_RTO_MAX_MS) == 1000 * seconds
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == plan.give_up_ms
    set_give_up(sock, plan.orphan_ms)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == plan.orphan_ms


def test_congestion_control_is_the_one_that_was_named(sock: socket.socket) -> None:
    """Whatever the system's own is."""
    set_congestion_control(sock, "reno")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_unknown_congestion_control_says_what_there_is(sock: socket.socket) -> None:
    """And how a kernel that has it as a module gets it."""
    with pytest.raises(CongestionControlError) as error:
        set_congestion_control(sock, "none-such")
    available = " ".join(names("available"))
    assert str(error.value) == (
        f"congestion_control: read 'none-such'; available: {available} "
        "(modprobe tcp_none-such may add it)"
    )


def test_congestion_control_that_only_root_may_choose_says_so(sock: socket.socket) -> None:
    """The machine has it, and names those that everybody may have."""
    kept = [name for name in names("available") if name not in names("allowed")]
    if not kept:
        pytest.skip("this machine allows everybody all that it has")
    with without_privileges(), pytest.raises(CongestionControlError) as error:
        set_congestion_control(sock, kept[0])
    assert str(error.value).startswith(
        f"congestion_control: read {kept[0]!r}; allowed without CAP_NET_ADMIN: "
        f"{' '.join(names('allowed'))} ("
    )
    assert "tcp_allowed_congestion_control" in str(error.value)
    with without_privileges():
        set_congestion_control(sock, names("allowed")[0])


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_kernel_sends_at_the_rate_that_was_set_until_there_is_none(sock: socket.socket) -> None:
    """It says of a descriptor that is no TCP socket's that it cannot."""
    pacing_rate = 47
    assert set_pacing_rate(sock.fileno(), 100_000.5)
    assert sock.getsockopt(socket.SOL_SOCKET, pacing_rate) == 100_000
    assert set_pacing_rate(sock.fileno(), None)
    assert sock.getsockopt(socket.SOL_SOCKET, pacing_rate) == -1
    read, write = os.pipe()
    assert not set_pacing_rate(read, None)
    os.close(read)
    os.close(write)
