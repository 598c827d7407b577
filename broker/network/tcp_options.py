"""What a listener's TCP socket is given, for the connections that are accepted on it to inherit.

Theory of operation. While nothing is acknowledged, Linux sends the oldest segment again and again
and doubles the time in between, up to 120 s. So a link that was dead for a minute may stay silent
for another one after it is back. A lower maximum (`rto_max_seconds`) bounds that silence. But the
kernel reckons from it, too, when to give a connection up: after the time that `tcp_retries2`
retransmissions would take, which are 15 min with 120 s, half a minute with 2 s. So what it would
have been is set beside it (TCP_USER_TIMEOUT). That one holds as well for connections that the
broker has closed with something unacknowledged, of which the kernel would keep buffers and timers
for so long: at its end a connection gets another, again what it would have been. (Linux 6.18,
net/ipv4/tcp_timer.c: `tcp_model_timeout`, `tcp_write_timeout`, `tcp_orphan_retries`.)
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.broker.errors import PenstockError

RTO_MAX_SINCE: Final = "Linux 6.15"
"""The first kernel that lets a socket have its own longest time between retransmissions."""

_TCP_RTO_MAX_MS: Final = 44
"""Of linux/tcp.h; Python does not name it."""

_SYSCTLS: Final = Path("/proc/sys/net/ipv4")
_RTO_MIN_MS: Final = 200
_LINUX_RETRIES: Final = 15
_LINUX_ORPHAN_RETRIES: Final = 8
"""What Linux takes where `tcp_orphan_retries` is 0, which is its default."""


class CongestionControlError(PenstockError):
    """This machine has no such congestion control, or does not let the broker choose it."""


@dataclass(frozen=True, slots=True)
class Retransmissions:
    """How the kernel repeats what is not acknowledged.

    Attributes:
        max_ms: the longest time between two.
        give_up_ms: since the first, after which a connection is lost.
        orphan_ms: the same, of a connection that the broker has closed.
    """

    max_ms: int
    give_up_ms: int
    orphan_ms: int


def plan_retransmissions(rto_max_seconds: float) -> Retransmissions | None:
    """Return what connections are to have for another longest time between retransmissions.

    They are given up when they would have been without it.

    Args:
        rto_max_seconds: that time, 1 to 120.

    Returns:
        None where the kernel does not let it be chosen.
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
    """Return one of the machine's; what Linux comes with where it is hidden from the broker."""
    try:
        return int((_SYSCTLS / name).read_text())
    except OSError:
        return default


def give_up_ms(n_retries: int, rto_max_ms: int) -> int:
    """Return how long so many retransmissions take, the first after 0.2 s, the least of all times.

    Args:
        n_retries: of one segment.
        rto_max_ms: longest time between two, in milliseconds.
    """
    return sum(min(_RTO_MIN_MS << n, rto_max_ms) for n in range(n_retries + 1))


def set_retransmissions(sock: socket.socket, plan: Retransmissions) -> None:
    """Give a socket that does not listen yet what was planned.

    Raises:
        OSError: it does not take it.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, plan.max_ms)
        set_give_up(sock, plan.give_up_ms)


def set_give_up(sock: socket.socket, give_up_ms: int) -> None:
    """Say when the connection of a socket is lost, whatever `tcp_retries2` and its like say.

    Args:
        sock: of TCP.
        give_up_ms: milliseconds without an acknowledgement.

    Raises:
        OSError: it does not take it.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


def set_congestion_control(sock: socket.socket, name: str) -> None:
    """Choose how a socket's connections find out what a link carries.

    Args:
        sock: of TCP, that does not listen yet.
        name: as the kernel calls it, such as `bbr`.

    Raises:
        CongestionControlError: it is not to be had; says what is, and how it may be.
    """
    if sys.platform != "linux":
        raise CongestionControlError(
            f"congestion_control: read {name!r}; allowed: null but on Linux"
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
    """Return the kernel's list of congestion controls, such as those `available`."""
    try:
        return (_SYSCTLS / f"tcp_{which}_congestion_control").read_text().strip()
    except OSError as error:
        return str(error)
