"""TCP options of a listener's socket, which the connections accepted on it inherit.

Theory of operation. While nothing is acknowledged, Linux retransmits the oldest segment and doubles
the time between retransmissions, up to 120 s. When a link returns after a minute, TCP may notice
only at the next retransmission, up to another minute later. A lower maximum (`rto_max_seconds`)
bounds that silence. But the kernel also derives from this maximum when to give a connection up:
after the time that `tcp_retries2` retransmissions would take, which is 15 min with 120 s, and half
a minute with 2 s. So that time is set explicitly to its value without the lower maximum
(TCP_USER_TIMEOUT).

TCP_USER_TIMEOUT also applies to connections that the broker has closed with data unacknowledged.
The kernel would keep buffers and timers for them as long. So a connection gets another value at its
end, again the one that it would have had. (Linux 6.18, net/ipv4/tcp_timer.c: `tcp_model_timeout`,
`tcp_write_timeout`, `tcp_orphan_retries`.)
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.broker.errors import PenstockError

RTO_MAX_SINCE: Final = "Linux 6.15"
"""The first kernel with a maximum retransmission timeout for each socket."""

_TCP_RTO_MAX_MS: Final = 44
"""The number in linux/tcp.h; Python has no name for it."""

_SYSCTLS: Final = Path("/proc/sys/net/ipv4")
_RTO_MIN_MS: Final = 200
_LINUX_RETRIES: Final = 15
_LINUX_ORPHAN_RETRIES: Final = 8
"""Linux uses this where `tcp_orphan_retries` is 0, its default."""


class CongestionControlError(PenstockError):
    """The kernel does not have this congestion control, or does not let the broker choose it."""


@dataclass(frozen=True, slots=True)
class Retransmissions:
    """The times after which the kernel retransmits unacknowledged data, and gives up.

    Attributes:
        max_ms: longest time between two retransmissions.
        give_up_ms: time from the first transmission to the loss of a connection.
        orphan_ms: the same time for a connection that the broker has closed.
    """

    max_ms: int
    give_up_ms: int
    orphan_ms: int


def plan_retransmissions(rto_max_seconds: float) -> Retransmissions | None:
    """Return the options for another longest time between retransmissions.

    Connections are given up at the same time as without these options.

    Returns:
        None where the kernel does not support it.
    """
    if sys.platform != "linux":
        return None
    try:
        with socket.socket() as asked:
            system_ms = asked.getsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS)
    except OSError:
        return None
    retries = _setting("tcp_retries2", _LINUX_RETRIES)
    orphan_retries = _setting("tcp_orphan_retries", 0) or _LINUX_ORPHAN_RETRIES
    return Retransmissions(
        max_ms=round(1000 * rto_max_seconds),
        give_up_ms=give_up_ms(retries, system_ms),
        orphan_ms=give_up_ms(orphan_retries, system_ms),
    )


def _setting(name: str, default: int) -> int:
    """Return a kernel setting; Linux's default where the broker cannot read it."""
    try:
        return int((_SYSCTLS / name).read_text())
    except OSError:
        return default


def give_up_ms(n_retries: int, rto_max_ms: int) -> int:
    """Return the time that retransmissions take, the first after Linux's minimum of 0.2 s."""
    return sum(min(_RTO_MIN_MS << n, rto_max_ms) for n in range(n_retries + 1))


def set_retransmissions(sock: socket.socket, plan: Retransmissions) -> None:
    """Set the planned options on a socket that does not listen yet.

    Raises:
        OSError: the kernel refuses one.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, plan.max_ms)
        set_give_up(sock, plan.give_up_ms)


def set_give_up(sock: socket.socket, give_up_ms: int) -> None:
    """Set when a socket's connection is lost, in place of `tcp_retries2` and its like.

    Raises:
        OSError: the kernel refuses it.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


def set_congestion_control(sock: socket.socket, name: str) -> None:
    """Set the congestion control of a socket's connections.

    Raises:
        CongestionControlError: it is not available; the message names those that are, and how to
            add it.
    """
    if sys.platform != "linux":
        raise CongestionControlError(
            f"congestion_control: read {name!r}; allowed other than on Linux: null"
        )
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError as error:
        raise CongestionControlError(
            f"congestion_control: read {name!r}; allowed without CAP_NET_ADMIN: "
            f"{_names('allowed')} (sysctl net.ipv4.tcp_allowed_congestion_control adds to them)"
        ) from error
    except OSError as error:
        raise CongestionControlError(
            f"congestion_control: read {name!r}; available: {_names('available')} "
            f"(modprobe tcp_{name} may add it)"
        ) from error


def _names(which: str) -> str:
    """Return one of the kernel's lists of congestion controls, such as those `available`."""
    try:
        return (_SYSCTLS / f"tcp_{which}_congestion_control").read_text().strip()
    except OSError as error:
        return str(error)


_SO_MAX_PACING_RATE: Final = 47
_NO_PACING: Final = 0xFFFFFFFF
"""Numbers in asm-generic/socket.h and net/sock.h; Python has no names for them."""


def set_pacing_rate(fileno: int, bytes_per_second: float | None) -> bool:
    """Have the kernel send on a connection at some rate at most; what it has taken included.

    Returns:
        False where the system cannot.
    """
    if sys.platform != "linux":
        return False
    rate = _NO_PACING if bytes_per_second is None else min(int(bytes_per_second), _NO_PACING - 1)
    try:
        with borrowed(fileno) as sock:
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=I", rate))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def borrowed(fileno: int) -> Iterator[socket.socket]:
    """Lend a socket for the options of a descriptor that is another's, and is left open.

    Family and type are given so that Python does not ask the kernel for them; they have no effect
    on the options.

    Raises:
        OSError: the descriptor is none.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno)
    try:
        yield sock
    finally:
        sock.detach()


def set_keepalive(sock: socket.socket, times: Mapping[str, int]) -> None:
    """Have the kernel ask the peer of a silent TCP connection whether it is still there.

    Args:
        sock: a TCP socket.
        times: names of the socket module, such as TCP_KEEPIDLE, and their values in seconds; not
            every system has each.

    Raises:
        OSError: the kernel refuses it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in times.items():
        number = getattr(socket, name, None)
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
