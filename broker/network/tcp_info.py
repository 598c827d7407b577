"""The Linux kernel's figures of a TCP connection, which cost no probe traffic.

`parse_tcp_info` decodes the kernel's structure, `read_tcp_info` gets it.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final, NamedTuple

# struct tcp_info of linux/tcp.h, with unused fields as padding. The kernel only ever appends to it;
# delivery_rate, the last field used, exists since Linux 4.9.
_LAYOUT = struct.Struct(
    "="
    "7xB"  # 7 delivery_rate_app_limited, a bit
    "8xI"  # 16 snd_mss
    "4xI"  # 24 unacked
    "40xII"  # 68 rtt; 72 rttvar
    "24xI"  # 100 total_retrans
    "16xQ"  # 120 bytes_acked
    "12xI"  # 140 segs_in
    "II"  # 144 notsent_bytes; 148 min_rtt
    "4xIQ"  # 156 data_segs_out; 160 delivery_rate
)
_READ_BYTES = 256
_APP_LIMITED_BIT = 0x01 if sys.byteorder == "little" else 0x80

_IS_LINUX = sys.platform == "linux"
_TCP_INFO = 11
_TCP_CONGESTION = 13
"""Linux's numbers of the options; other systems have other structures and numbers."""

_NAME_BYTES = 16
"""TCP_CA_NAME_MAX of linux/tcp.h."""


NEAR_SECONDS: Final = 0.005
"""An RTT within one data center is below it, one between two is usually above it."""

UNKNOWN_MIN_RTT: Final = 0xFFFF_FFFF / 1e6
"""Linux's mark of an RTT that was not measured yet, in seconds."""


class TcpInfo(NamedTuple):
    """The fields of struct tcp_info that describe the path.

    Attributes:
        rtt: smoothed RTT, seconds; 0 before the first sample.
        rttvar: mean deviation of the RTT, seconds.
        mss: bytes of payload in a full segment.
        unacked: segments sent and not acknowledged.
        total_retrans: retransmissions since the connection began.
        bytes_acked: bytes acknowledged since the connection began.
        segs_in: segments received since the connection began, acknowledgements included.
        notsent_bytes: bytes that the kernel has taken and never sent.
        data_segs_out: segments with data sent since the connection began, retransmissions included.
        delivery_rate: recent rate of acknowledged bytes, bytes per second; 0 before the first.
        is_app_limited: whether that rate was measured while there was too little to send.
        min_rtt: least RTT of the recent past, seconds; `UNKNOWN_MIN_RTT` before the first sample.
    """

    rtt: float
    rttvar: float
    mss: int
    unacked: int
    total_retrans: int
    bytes_acked: int
    segs_in: int
    notsent_bytes: int
    data_segs_out: int
    delivery_rate: int
    is_app_limited: bool
    min_rtt: float = UNKNOWN_MIN_RTT


def parse_tcp_info(data: bytes) -> TcpInfo | None:
    """Return the fields of a struct tcp_info, or None where it is too short."""
    if len(data) < _LAYOUT.size:
        return None
    flags, mss, unacked, rtt, rttvar, retrans, acked, segs_in, notsent, min_rtt, segs, rate = (
        _LAYOUT.unpack_from(data)
    )
    return TcpInfo(
        rtt / 1e6,
        rttvar / 1e6,
        mss,
        unacked,
        retrans,
        acked,
        segs_in,
        notsent,
        segs,
        rate,
        flags & _APP_LIMITED_BIT != 0,
        min_rtt / 1e6,
    )


def read_tcp_info(fileno: int) -> TcpInfo | None:
    """Ask the kernel about a connection. The descriptor is not changed.

    Returns:
        None where the kernel has no answer: not Linux or older than 4.9, no TCP socket, or closed.
    """
    data = _option(fileno, _TCP_INFO, _READ_BYTES)
    return None if data is None else parse_tcp_info(data)


def is_near(fileno: int) -> bool:
    """Say whether a connection's least RTT is at most `NEAR_SECONDS`, or unknown to the kernel."""
    info = read_tcp_info(fileno)
    return info is None or info.min_rtt <= NEAR_SECONDS


def read_congestion_control(fileno: int) -> str:
    """Return the name of a connection's congestion control, such as ``cubic``.

    Returns:
        "" where the kernel has no answer.
    """
    data = _option(fileno, _TCP_CONGESTION, _NAME_BYTES)
    # Interned: one object for all connections, of which there may be many thousands.
    return "" if data is None else sys.intern(data.partition(b"\0")[0].decode("ascii", "replace"))


def _option(fileno: int, option: int, n_bytes: int) -> bytes | None:
    """Return an option of a TCP connection, or None."""
    if not _IS_LINUX or fileno < 0:
        return None
    try:
        # Family and type are given so that Python does not ask the kernel for them; they have no
        # effect on the option. detach() keeps the descriptor open. The base class of socket.socket
        # takes half as long.
        borrowed = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fileno)
    except OSError:
        return None
    try:
        return borrowed.getsockopt(socket.IPPROTO_TCP, option, n_bytes)
    except OSError:
        return None
    finally:
        borrowed.detach()


def is_tcp_info_supported() -> bool:
    """Say whether this kernel has what `read_tcp_info` needs."""
    with socket.socket() as unconnected:
        return read_tcp_info(unconnected.fileno()) is not None
