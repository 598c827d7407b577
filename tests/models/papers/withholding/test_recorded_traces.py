from __future__ import annotations

from pathlib import Path

import pytest

from penstock.models.papers.withholding.recorded_traces import Trace, read_traces
from penstock.models.recording.rows import MessageRow, RttRow, SubscriptionRow, Writer
from penstock.netem.figures import records
from penstock.netem.figures.tables import Format, write_table


def rtt(seconds: float, client: str = "far", **changes: object) -> RttRow:
    """Return a look at a client whose RTT is 0.25 s."""
    row = RttRow(seconds, client, True, 0.25, 0, None, 0, None, None, None, None)
    return row._replace(**changes)  # type: ignore[arg-type]


def recorded(folder: Path, *rows: RttRow | MessageRow | SubscriptionRow) -> Path:
    """Write a recording."""
    writer = Writer(folder, 1_000_000)
    for row in rows:
        writer.take(row)
    writer.close()
    return folder


def rounded(trace: Trace) -> list[tuple[int, float]]:
    """Return the large messages of a trace."""
    return [(second, round(scale, 6)) for second, scale in trace.arrivals or ()]


def test_a_second_has_the_newest_rtt_of_the_broker(tmp_path: Path) -> None:
    """The age of what is unanswered is the least that the RTT can be, as for the gate."""
    rows = [
        rtt(10.0),
        rtt(11.0, rtt_seconds=None),
        rtt(12.0, unanswered_seconds=0.1),
        rtt(13.0, unanswered_seconds=2.0),
        rtt(14.0, rtt_seconds=0.5),
    ]
    assert read_traces(recorded(tmp_path, *rows)) == [
        Trace("far", [0.25, 0.25, 0.25, 2.0, 0.5], None)
    ]


def test_an_rtt_of_a_larger_packet_counts_as_that_of_the_query(tmp_path: Path) -> None:
    """By the profile of the policy: 1 MB takes ten times as long as 10 KB."""
    rows = [rtt(0.0), rtt(1.0, rtt_seconds=3.0, rtt_bytes=1_000_000)]
    (trace,) = read_traces(recorded(tmp_path, *rows))
    assert trace.rtts == pytest.approx([0.25, 0.3])


def test_large_messages_come_to_those_who_have_subscribed_to_them(tmp_path: Path) -> None:
    """Small ones, and those of other topics, are not simulated."""
    folder = recorded(
        tmp_path,
        *(rtt(float(second), client) for second in range(1, 5) for client in ("far", "near")),
        SubscriptionRow(0.0, "far", "a/+"),
        SubscriptionRow(0.0, "near", None),
        MessageRow(0.5, "a/1", 1_000_000, None),
        MessageRow(2.5, "a/1", 1_000_000, None),
        MessageRow(2.5, "a/2", 10_000, None),
        MessageRow(2.6, "b/1", 1_000_000, None),
        MessageRow(4.2, "a/2", 100_000_000, None),
    )
    far, near = read_traces(folder)
    assert rounded(far) == [(1, 10.0), (3, 100.0)]
    assert near.arrivals is None


def test_time_without_a_connection_is_left_out(tmp_path: Path) -> None:
    """Nothing is sent in it: messages of that time are left out, too."""
    folder = recorded(
        tmp_path,
        *(rtt(at) for at in (0.0, 1.0)),
        *(rtt(at, is_connected=False, rtt_seconds=None) for at in (2.0, 6.0)),
        *(rtt(at, rtt_seconds=0.5) for at in (7.0, 8.0)),
        SubscriptionRow(0.0, "far", "#"),
        *(MessageRow(at, "t", 1_000_000, None) for at in (1.5, 3.0, 7.5)),
    )
    (trace,) = read_traces(folder)
    assert trace.rtts == [0.25, 0.25, 0.5, 0.5]
    assert rounded(trace) == [(1, 10.0), (2, 10.0)]


def test_a_recording_without_a_path_is_refused(tmp_path: Path) -> None:
    """A client without estimates has no trace, and one look is none."""
    folder = recorded(tmp_path, rtt(0.0), *(rtt(at, "b", rtt_seconds=None) for at in (0.0, 9.0)))
    with pytest.raises(ValueError, match="no client with RTTs for 2 s or more; allowed: "):
        read_traces(folder)


@pytest.mark.parametrize("form", Format)
def test_a_run_of_netem_gives_a_trace_of_each_subscriber(tmp_path: Path, form: Format) -> None:
    """Of the broker without a policy; twice the latency of a small message stands for the RTT."""
    messages, deliveries = [], []
    for broker, latency in (("adaptive", 9.0), ("none", 0.5)):
        for number in range(3):
            message = records.MessageRow(
                broker, 1, "pub", "news", "t", number, 200, 1, float(number), 0.0, None, None
            )
            messages.append(message)
            delivered = number + latency * (1 + number)
            deliveries += [
                records.DeliveryRow(
                    broker, 1, "sub", "pub", "news", number, 1, is_duplicate, delivered + late
                )
                for is_duplicate, late in ((False, 0.0), (True, 50.0))
            ]
        messages.append(message._replace(stream="pictures", payload_bytes=1_000_000, due_s=1.5))
        deliveries.append(
            deliveries[-1]._replace(stream="pictures", is_duplicate=False, delivered_s=7.0)
        )
    write_table(tmp_path, records.MessageRow, messages, form)
    write_table(tmp_path, records.DeliveryRow, deliveries, form)
    (trace,) = read_traces(tmp_path)
    assert trace.name == "sub, none, seed 1"
    assert trace.rtts == pytest.approx([1.0, 2.0, 3.0])
    assert rounded(trace) == [(1, 10.0)]
