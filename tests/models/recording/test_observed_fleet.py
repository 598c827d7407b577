from __future__ import annotations

from pathlib import Path

import pytest

from penstock.models.planner.fleet import read_fleet
from penstock.models.recording.observed_fleet import MOST_KINDS, observe
from penstock.models.recording.rows import FigureRow, MessageRow, RttRow, SubscriptionRow, Writer
from tests.models.recording.small_recording import small_recording


def test_devices_are_told_apart_by_topics_and_sizes(tmp_path: Path) -> None:
    """A topic is a device; what differs in digits alone is of one kind."""
    fleet = observe(small_recording(tmp_path)).fleet
    assert fleet["devices"] == {
        "cameras": {
            "count": 2,
            "messages_per_second": pytest.approx(0.05, rel=0.01),
            "payload_bytes": 200_000,
            "link": "devices",
            "topics": "cameras/+",
        },
        "sensors-temp": {
            "count": 4,
            "messages_per_second": pytest.approx(0.1, rel=0.01),
            "payload_bytes": 200,
            "link": "devices",
            "topics": "sensors/+/temp",
            "lifetime_seconds": 60.0,
        },
    }


def test_subscribers_are_told_apart_by_their_filters(tmp_path: Path) -> None:
    """With the share of the messages that one gets; who gets none is not planned for."""
    fleet = observe(small_recording(tmp_path)).fleet
    assert fleet["subscribers"] == {
        "operator": {
            "count": 2,
            "devices": ["cameras", "sensors-temp"],
            "link": "operator",
            "share_ratio": 1.0,
            "on_seconds": pytest.approx(169.0),
            "off_seconds": pytest.approx(30.0),
        },
        "display": {
            "count": 1,
            "devices": ["sensors-temp"],
            "link": "display",
            "share_ratio": 0.25,
        },
    }


def test_links_have_the_bad_phases_that_were_seen(tmp_path: Path) -> None:
    """Above threshold_l, while connected; a link that was never bad has none."""
    links = observe(small_recording(tmp_path)).fleet["links"]
    assert links["operator"] == {
        "rtt_seconds": 0.05,
        "bytes_per_second": 1_000_000,
        "bad": {"rtt_seconds": 0.3, "bytes_per_second": 50_000, "loss_ratio": 0.05},
        "good_seconds": pytest.approx(159.0),
        "bad_seconds": pytest.approx(40.0),
    }
    assert links["display"] == {"rtt_seconds": 0.01, "bytes_per_second": 70_000}


def test_the_file_says_what_was_assumed_and_can_be_planned_for(tmp_path: Path) -> None:
    """Its comments are the notes."""
    seen = observe(small_recording(tmp_path))
    seen.write(tmp_path / "fleet.yaml")
    fleet = read_fleet(tmp_path / "fleet.yaml")
    assert fleet.machine.cores == 2
    text = (tmp_path / "fleet.yaml").read_text()
    assert all(f"# {note}" in text for note in seen.notes)
    assert any("The link of display may carry more" in note for note in seen.notes)
    assert seen.rates["penstock/process/processor_seconds"] == pytest.approx(0.02)


def test_devices_of_too_many_kinds_are_one_together(tmp_path: Path) -> None:
    """A broker with a thousand kinds of topics gets a plan that can be read."""
    writer = Writer(tmp_path, 1_000_000)
    for number in range(MOST_KINDS + 3):
        topic = "a" * (number + 1)
        writer.take(MessageRow(1.0 + number, topic, 1_000 - number, None))
    writer.take(SubscriptionRow(0.0, "s", "#"))
    writer.close()
    seen = observe(tmp_path).fleet
    assert len(seen["devices"]) == MOST_KINDS + 1
    assert (seen["devices"]["others"]["count"], seen["devices"]["others"]["topics"]) == (3, "#")
    assert len(seen["subscribers"]["s"]["devices"]) == MOST_KINDS + 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no messages in the recording; allowed: "),
        ([FigureRow(1.0, "uptime", "1")], "no messages in the recording; allowed: "),
        ([MessageRow(1.0, "t", 1, None)], "no subscriber of these messages in the recording"),
        (
            [
                MessageRow(1.0, "t", 1, None),
                SubscriptionRow(0.0, "s", "u"),
                RttRow(1.0, "s", True, 0.1, 0, None, 0, None, None, None, None),
            ],
            "no subscriber of these messages in the recording",
        ),
    ],
)
def test_a_recording_without_a_fleet_is_refused(
    tmp_path: Path, rows: list[tuple[object, ...]], message: str
) -> None:
    """And says what it needs."""
    writer = Writer(tmp_path, 1_000_000)
    for row in rows:
        writer.take(row)
    writer.close()
    with pytest.raises(ValueError, match=message):
        observe(tmp_path)
