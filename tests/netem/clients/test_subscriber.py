from __future__ import annotations

import socket
from pathlib import Path

import pytest
from paho.mqtt import client as mqtt

from penstock.netem.clients.client_plan import Awaited, LanePlan, SubscriberPlan
from penstock.netem.clients.connection import BULK_BYTES, new_client, read_in_bulk
from penstock.netem.clients.payloads import SOUNDING
from penstock.netem.clients.subscriber import Delivered, Progress, read_delivered_file


def plan(awaited: list[Awaited]) -> SubscriberPlan:
    """Return a subscriber that awaits something."""
    return SubscriberPlan(
        "sub", "127.0.0.1", 1883, "5", [LanePlan("sub", ["#"])], 1, 60, {}, awaited, "", ""
    )


def test_a_reader_wakes_up_for_as_much_as_is_missing_of_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most so many bytes, so that no message is read late; between two messages, for any."""
    monkeypatch.setattr(mqtt.Client, "loop_read", mqtt.Client.loop_read)
    read_in_bulk()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        client = new_client("sub", "3.1.1")
        client._sock = ours
        got: list[int] = []
        client.on_message = lambda _client, _data, message: got.append(len(message.payload))

        def low_water_mark() -> int:
            client.loop_read()
            return ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

        head = bytes([0x30, 0xE3, 0xA7, 0x12, 0, 1]) + b"t"  # 300,003 bytes follow the length
        theirs.sendall(head + bytes(100_000))
        assert low_water_mark() == BULK_BYTES
        theirs.sendall(bytes(100_000))
        assert low_water_mark() == BULK_BYTES
        theirs.sendall(bytes(99_000))
        assert low_water_mark() == 1_000
        assert got == []
        theirs.sendall(bytes(1_000))
        assert low_water_mark() == 1
        assert got == [300_000]


def test_what_is_promised_and_what_is_not_are_told_apart() -> None:
    """What comes at QoS 1 has to come; it is complete with what comes at QoS 0, too."""
    told: list[str] = []
    awaited = [Awaited(0, 0, 2, is_promised=True), Awaited(0, 1, 1, is_promised=False)]
    progress = Progress(plan(awaited), told.append)
    progress.count(0, 0, 0)
    assert told == []
    progress.count(0, 0, 1)
    assert told == ["assured"]
    progress.count(0, 1, 0)
    assert told == ["assured", "complete"]


def test_a_message_that_comes_twice_counts_once() -> None:
    """A duplicate does not stand for one that is missing; nor does one of somebody else."""
    told: list[str] = []
    progress = Progress(plan([Awaited(0, 0, 2, is_promised=True)]), told.append)
    progress.count(0, 0, 1)
    progress.count(0, 0, 1)
    progress.count(9, 9, 0)
    assert told == []
    progress.count(0, 0, 0)
    assert told == ["assured", "complete"]
    progress.count(0, 0, 0)
    assert told == ["assured", "complete"]


def test_who_awaits_nothing_has_everything() -> None:
    """The run does not wait for such a one."""
    told: list[str] = []
    Progress(plan([]), told.append)
    assert told == ["assured", "complete"]


def test_deliveries_are_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    """With the flag DUP and the QoS of each PUBLISH; without a file there are none."""
    file = tmp_path / "subscriber0"
    assert read_delivered_file(file) == []
    file.write_text("0 1 7 1 0 12.5\n0 1 7 1 1 13.0\n")
    assert read_delivered_file(file) == [
        Delivered(0, 1, 7, 1, is_duplicate=False, at=12.5),
        Delivered(0, 1, 7, 1, is_duplicate=True, at=13.0),
    ]


def test_soundings_tell_that_all_publishers_reach_a_subscriber() -> None:
    """One of each stream that it awaits; they are no messages of the traffic."""
    told: list[str] = []
    awaited = [Awaited(0, 0, 1, is_promised=True), Awaited(1, 0, 1, is_promised=True)]
    progress = Progress(plan(awaited), told.append)
    for publisher in (0, 0, 9):
        progress.count(publisher, 0, SOUNDING)
    assert told == []
    progress.count(1, 0, SOUNDING)
    progress.count(1, 0, SOUNDING)
    assert told == ["reached"]
