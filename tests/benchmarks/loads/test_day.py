from __future__ import annotations

import socket
import threading
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.loads import wire
from benchmarks.loads.access import Access
from benchmarks.loads.day import (
    BUFFER_BYTES,
    KINDS,
    Day,
    Reader,
    command_topic,
    departures,
    rate_of_bad_links,
)
from tests.helpers.process import SECONDS

DAY = Day(50, 60.0)


def test_every_message_is_due_once_in_order_and_within_the_day() -> None:
    """What is sent is what the readers count, and a schedule that does not depend on the broker."""
    told = list(departures(DAY))
    dues = [due for due, *_ in told]
    assert dues == sorted(dues)
    assert dues[0] >= 0
    assert dues[-1] < DAY.seconds
    by_topic = Counter(topic for _, topic, _, _ in told)
    for device in range(DAY.sleepers.start):
        assert by_topic[DAY.topic(device)] == DAY.count(device)
    for device in DAY.sleepers:
        assert by_topic[command_topic(device)] == DAY.commands(device)
        assert DAY.due(device, DAY.count(device)) >= DAY.seconds


def test_each_device_is_read_by_the_two_readers_of_its_site() -> None:
    """No message is expected by nobody, and one in ten of 200 readers has a bad link."""
    readers = Counter(device for r in range(DAY.readers) for device in DAY.devices_of(r))
    assert readers == dict.fromkeys(range(50 - DAY.readers), 2)
    large = Day(1000, 60.0)
    assert sum(map(large.has_bad_link, range(large.readers))) == 20
    assert len(large.sleepers) == 200


def test_one_message_in_twenty_is_large_and_no_two_are_alike() -> None:
    """Sizes and content are at random, and the same in all processes."""
    payloads = [DAY.payload(device, number) for device in range(20) for number in range(100)]
    large = [payload for payload in payloads if len(payload) > 1000]
    assert 0.03 < len(large) / len(payloads) < 0.07
    assert len(set(payloads)) == len(payloads)
    assert DAY.payload(3, 5) == payloads[305]


def test_a_bad_link_takes_less_than_is_sent_in_one_phase_of_three() -> None:
    """So messages wait for a third of the time, and leave in the rest."""
    rates = [rate_of_bad_links(seconds) for seconds in range(60)]
    assert Counter(rates) == {5_000: 20, 100_000: 40}


@contextmanager
def reading(day: Day, *packets: bytes) -> Iterator[tuple[Reader, dict[str, array[float]]]]:
    """Yield the first reader, to which a broker sends these packets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                wire.receive_packet(sock)
                sock.sendall(wire.CONNACK_ACCEPTED)
                wire.receive_packet(sock)
                sock.sendall(bytes([wire.SUBACK, 3, 0, 1, 1]) + b"".join(packets))
                sock.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        lateness = {kind: array("d") for kind in KINDS}
        reader = Reader(Access(server.getsockname()[1]), day, 0, lateness)
        reader.sock.settimeout(SECONDS)
        try:
            yield reader, lateness
        finally:
            reader.sock.close()
            thread.join(SECONDS)


def published(day: Day, device: int, number: int) -> bytes:
    """Return a message as the broker sends it."""
    return wire.publish_packet(day.topic(device), day.payload(device, number), 7)


def read_bytes(reader: Reader, size: int) -> None:
    """Read so many bytes, one by one."""
    for _ in range(size):
        reader.read(1, 0.0)


def test_lateness_is_counted_from_when_a_message_was_due() -> None:
    """A message that the broker held up is late by all that time."""
    device = DAY.devices_of(0)[0]
    packet = published(DAY, device, 0)
    with reading(DAY, packet) as (reader, lateness):
        before, taken = reader.remaining, 0
        while taken < len(packet):
            taken += reader.read(len(packet) - taken, -1000.0)
        assert reader.remaining == before - 1
    (late,) = [value for values in lateness.values() for value in values]
    assert late > 1000.0 - DAY.interval(device)


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2)], ids=["late", "twice", "lost"])
def test_a_message_out_of_turn_ends_the_day(numbers: tuple[int, ...]) -> None:
    """What was lost, repeated or overtaken on a topic is no result."""
    device = DAY.devices_of(0)[0]
    packets = [published(DAY, device, number) for number in numbers]
    with reading(DAY, *packets) as (reader, _), pytest.raises(wire.WireError, match="due was"):
        read_bytes(reader, sum(map(len, packets)))


def test_a_large_message_is_taken_when_it_is_there_in_full() -> None:
    """Pieces of a message are no message."""
    devices = DAY.devices_of(0)
    device = next(each for each in devices if DAY.is_large(each, 0) or each == devices[-1])
    packet = published(DAY, device, 0)
    with reading(DAY, packet) as (reader, _):
        before, taken = reader.remaining, 0
        while taken < len(packet) - 1:
            taken += reader.read(min(BUFFER_BYTES, len(packet) - 1 - taken), 0.0)
        assert reader.remaining == before
        reader.read(1, 0.0)
        assert reader.remaining == before - 1
