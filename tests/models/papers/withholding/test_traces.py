from __future__ import annotations

import random
from pathlib import Path
from statistics import mean

import pytest

from penstock.models.papers.withholding.recorded_traces import Trace, read_traces
from penstock.models.papers.withholding.rtt_trace import TraceParameters, generate_trace, read_trace
from penstock.models.recording.rows import MessageRow, RttRow, SubscriptionRow, Writer
from penstock.netem.figures import table_rows
from penstock.netem.figures.table_files import Format, write_table

N_SECONDS = 5_000


def seeded(seed: int) -> random.Random:
    """Return the source of chance for one trace."""
    return random.Random(seed)  # noqa: S311 (a simulation has no secrets)


def test_trace_has_bursts_of_one_height() -> None:
    """A burst adds one amount for 10 to 25 s (paper 002, simulation 1)."""
    parameters = TraceParameters(calm_rtt=(0.2, 0.2))
    trace = generate_trace(seeded(1), N_SECONDS, parameters)
    runs: list[tuple[float, int]] = []
    for rtt in trace:
        if runs and runs[-1][0] == rtt:
            runs[-1] = (rtt, runs[-1][1] + 1)
        else:
            runs.append((rtt, 1))
    bursts = [(rtt - 0.2, length) for rtt, length in runs[:-1] if rtt > 0.2]
    assert len(bursts) > 100
    assert {length for _, length in bursts} == set(range(10, 26))
    assert mean(added for added, _ in bursts) == pytest.approx(1 / 0.3, rel=0.2)


def test_calm_rtt_is_uniform_between_its_bounds() -> None:
    """Without bursts the RTT stays between 0.15 and 0.45 s and fills that range."""
    trace = generate_trace(seeded(1), N_SECONDS, TraceParameters(burst_probability=0.0))
    assert 0.15 <= min(trace) < 0.16
    assert 0.44 < max(trace) <= 0.45
    assert mean(trace) == pytest.approx(0.3, abs=0.01)


def test_trace_is_that_of_its_seed() -> None:
    """A seed names one trace, so that policies can be compared on it."""
    first, again, other = (generate_trace(seeded(seed), 100) for seed in (1, 1, 2))
    assert first == again != other


def test_file_gives_each_second_the_row_before_it() -> None:
    """Rows hold until the next; times begin anywhere, a heading and empty lines are skipped."""
    lines = ["seconds,rtt", "100.5,0.2", "", "102,0.3", "102.2,0.4", "103.5,0.5"]
    # At 100.5 and 101.5 it is 0.2, at 102.5 already 0.4, at 103.5 it is 0.5.
    assert read_trace(lines) == [0.2, 0.2, 0.4, 0.5]


def test_file_with_one_row_is_one_second() -> None:
    """The least trace there is."""
    assert read_trace(["7,0.25"]) == [0.25]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "read no rows; allowed: at least one"),
        (["seconds,rtt"], "read no rows"),
        (["0,0.1", "1,fast"], "line 2: read '1,fast'; allowed: seconds,RTT in seconds"),
        (["0,0.1", "1"], "line 2: read '1'"),
        (["0,0.1", "1,0.1,7"], "line 2: read '1,0.1,7'"),
        (["0,0.1", "1,inf"], "line 2: read '1,inf'"),
        (["0,-0.1"], "line 1: read RTT -0.1; allowed: 0 or above"),
        (["5,0.1", "5,0.1"], "line 2: read time 5; allowed: above 5"),
        (["0,0.1", "1e9,0.1"], "read more than 1000000 seconds"),
    ],
)
def test_wrong_file_names_line_value_and_what_is_allowed(lines: list[str], told: str) -> None:
    """A user's mistake is found in the file, not in the result."""
    with pytest.raises(ValueError, match=told):
        read_trace(lines)


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
    """The broker has no policy; twice the latency of a small message stands for the RTT."""
    messages, deliveries = [], []
    for broker, latency in (("adaptive", 9.0), ("none", 0.5)):
        for number in range(3):
            message = table_rows.MessageRow(
                broker, 1, "pub", "news", "t", number, 200, 1, float(number), 0.0, None, None
            )
            messages.append(message)
            delivered = number + latency * (1 + number)
            deliveries += [
                table_rows.DeliveryRow(
                    broker, 1, "sub", "pub", "news", number, 1, is_duplicate, delivered + late
                )
                for is_duplicate, late in ((False, 0.0), (True, 50.0))
            ]
        messages.append(message._replace(stream="pictures", payload_bytes=1_000_000, due_s=1.5))
        deliveries.append(
            deliveries[-1]._replace(stream="pictures", is_duplicate=False, delivered_s=7.0)
        )
    write_table(tmp_path, table_rows.MessageRow, messages, form)
    write_table(tmp_path, table_rows.DeliveryRow, deliveries, form)
    (trace,) = read_traces(tmp_path)
    assert trace.name == "sub, none, seed 1"
    assert trace.rtts == pytest.approx([1.0, 2.0, 3.0])
    assert rounded(trace) == [(1, 10.0)]
