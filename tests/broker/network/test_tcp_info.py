from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from penstock.broker.network import tcp_info
from penstock.broker.network.tcp_info import (
    TcpInfo,
    is_near,
    is_tcp_info_supported,
    parse_tcp_info,
    read_congestion_control,
    read_tcp_info,
)
from tests.helpers.loopback import Loopback


def structure(**fields: tuple[int, str, int]) -> bytes:
    """Return a struct tcp_info of zeros with (offset, format, value) written into it."""
    data = bytearray(232)
    for offset, form, value in fields.values():
        struct.pack_into(f"={form}", data, offset, value)
    return bytes(data)


def test_fields_are_found_at_the_offsets_of_linux() -> None:
    """Offsets as `offsetof` gives them for struct tcp_info of linux/tcp.h; times in seconds."""
    data = structure(
        snd_mss=(16, "I", 1448),
        unacked=(24, "I", 3),
        rtt=(68, "I", 250_000),
        rttvar=(72, "I", 40_000),
        total_retrans=(100, "I", 9),
        bytes_acked=(120, "Q", 2**40),
        segs_in=(140, "I", 55),
        notsent_bytes=(144, "I", 77),
        min_rtt=(148, "I", 20_000),
        data_segs_out=(156, "I", 90),
        delivery_rate=(160, "Q", 2**33),
    )
    assert parse_tcp_info(data) == TcpInfo(
        rtt=0.25,
        rttvar=0.04,
        mss=1448,
        unacked=3,
        total_retrans=9,
        bytes_acked=2**40,
        segs_in=55,
        notsent_bytes=77,
        data_segs_out=90,
        delivery_rate=2**33,
        is_app_limited=False,
        min_rtt=0.02,
    )


def test_app_limited_is_the_first_bit_of_its_byte() -> None:
    """It shares the byte with other flags, which do not set it."""
    bit = 0x01 if sys.byteorder == "little" else 0x80
    for flags, is_app_limited in ((bit, True), (0xFF, True), (0xFF ^ bit, False)):
        info = parse_tcp_info(structure(flags=(7, "B", flags)))
        assert info is not None
        assert info.is_app_limited is is_app_limited


@pytest.mark.parametrize("size", [0, 104, 167])
def test_structure_of_an_old_kernel_is_refused(size: int) -> None:
    """Before Linux 4.9 the structure ends before delivery_rate."""
    assert parse_tcp_info(bytes(size)) is None


def test_fresh_connection_has_the_rtt_of_its_handshake(loopback: Loopback) -> None:
    """A server knows the path before it has sent a byte."""
    info = loopback.info()
    assert 0 < info.rtt < 1
    assert (info.bytes_acked, info.notsent_bytes, info.total_retrans) == (0, 0, 0)


def test_acknowledged_bytes_are_counted(loopback: Loopback) -> None:
    """What the subscriber's kernel has is acknowledged."""
    loopback.exchange(1_000)
    assert loopback.info().bytes_acked == 1_000
    assert loopback.info().data_segs_out == 1


def test_bytes_for_a_reader_that_stalls_are_not_sent(loopback: Loopback) -> None:
    """What the kernel keeps is in notsent_bytes, the rest was sent."""
    sent = loopback.fill()
    info = loopback.info()
    assert 0 < info.notsent_bytes < sent
    assert info.delivery_rate > 0


def test_the_congestion_control_is_named(loopback: Loopback) -> None:
    """What a socket asks for, and what it says on its own; what is no TCP connection says none."""
    assert read_congestion_control(loopback.fileno).isalnum()
    loopback.broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    assert read_congestion_control(loopback.fileno) == "reno"
    with socket.socket(socket.AF_UNIX) as local:
        assert read_congestion_control(local.fileno()) == ""


def test_reading_leaves_the_descriptor_open_and_as_it_was(loopback: Loopback) -> None:
    """The connection goes on after any number of looks."""
    loopback.broker.setblocking(False)
    for _ in range(100):
        read_tcp_info(loopback.fileno)
    assert not os.get_blocking(loopback.fileno)
    loopback.exchange()


def test_what_is_no_tcp_connection_has_no_answer(tmp_path: Path, loopback: Loopback) -> None:
    """Unix sockets, files and closed descriptors give None, and stay as they were; -1 is none."""
    assert read_tcp_info(-1) is None
    assert is_near(-1)
    left, right = socket.socketpair()
    with left, right:
        assert read_tcp_info(left.fileno()) is None
        left.sendall(b"x")
        assert right.recv(1) == b"x"
    with (tmp_path / "file").open("wb") as file:
        assert read_tcp_info(file.fileno()) is None
        file.write(b"x")
    descriptor = loopback.fileno
    loopback.broker.close()
    assert read_tcp_info(descriptor) is None


def test_other_systems_have_no_answer(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the option's number means something else and is not asked."""
    assert is_tcp_info_supported()
    monkeypatch.setattr(tcp_info, "_IS_LINUX", False)
    assert read_tcp_info(loopback.fileno) is None
    assert not is_tcp_info_supported()
