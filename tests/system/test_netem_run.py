from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from penstock.netem.figures.table_files import read_table
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    ExpectedRow,
    LinkRow,
    MachineRow,
    MemoryRow,
    MessageRow,
    PacketsRow,
    RunRow,
    WithheldRow,
)
from penstock.netem.links.namespaces import FOLDER
from penstock.netem.runs.run_file import read_run_info
from tests.helpers import forks
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import SECONDS

pytestmark = NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """
title: A bad phase
about: A subscriber behind a link that is slow for a second.
profiles:
  good:
    upstream: {delay: 0.01, rate: 2500000}
    downstream: {delay: 0.01, rate: 2500000}
  bad:
    upstream: {delay: 0.1, rate: 2500000}
    downstream: {delay: 0.1, rate: 2500000}
topology:
  hosts: {cloud: {}, edge: {}}
  links:
    - {between: [cloud, edge], profile: good}
impairments:
  - link: cloud-edge
    trace: {at_seconds: [0, 1, 2], profiles: [good, bad, good]}
broker_host: cloud
brokers:
  penstock:
    kind: penstock
    # No path is as fast as this threshold: every large message is withheld, on any machine.
    settings:
      plugins: {withholding: {policy: conservative, threshold_l: 1.0e-6, max_withhold: 0.5}}
  mosquitto: {kind: mosquitto}
traffic:
  small: {topic: alarms/1, payload_bytes: 100, period_seconds: 0.25, first_seconds: 0.1}
  large: {topic: pictures/1, payload_bytes: 300000, period_seconds: 1, first_seconds: 0.35}
publishers:
  sensor: {host: cloud, streams: [small, large]}
subscribers:
  dashboard: {host: edge, filters: [alarms/#, pictures/#]}
targets:
  - {figure: lost, broker: penstock, at_most: 0}
  - {figure: lost, broker: mosquitto, at_most: 0}
  - {figure: small p50, broker: penstock, at_most: 0, is_timing: true}
duration_seconds: 3
drain_seconds: 60
short: {}
"""

N_SMALL = 12
N_LARGE = 3
"""Messages of the streams in the run."""


def start(arguments: list[str], folder: Path, *, is_forked: bool = True) -> subprocess.Popen[str]:
    """Start ``penstock netem run`` in a folder, as a fork or as a user does."""
    begin = forks.Popen if is_forked else subprocess.Popen
    return begin(
        [sys.executable, "-m", "penstock", "netem", "run", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def left_behind(pid: int) -> list[str]:
    """Return the namespaces that a process has made and not removed."""
    return [each.name for each in FOLDER.iterdir() if each.name.startswith(f"penstock-{pid}-")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of both brokers, in which both targets that count were met."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "bad-phase.yaml").write_text(SCENARIO)
    arguments = ["bad-phase.yaml", "--short", "--check", "--format", "csv"]
    run = start(arguments, folder, is_forked=False)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert "report: netem-bad-phase/report.md" in out
    assert len([line for line in out.splitlines() if "lost" in line]) == 2
    assert "traffic for 3 s" in err
    assert not left_behind(run.pid)
    return folder / "netem-bad-phase"


def test_nothing_is_lost_at_qos_1_and_order_is_kept(folder: Path) -> None:
    """Each broker delivers each message of both streams, the first times of each in order."""
    expected = read_table(folder, ExpectedRow)
    assert len(expected) == 4
    deliveries = read_table(folder, DeliveryRow)
    for row in expected:
        numbers = [
            each.number
            for each in deliveries
            if (each.broker, each.stream) == (row.broker, row.stream)
        ]
        first_times = list(dict.fromkeys(numbers))
        assert first_times == list(range(N_SMALL if row.stream == "small" else N_LARGE)), row


def test_each_message_is_there_with_its_times(folder: Path) -> None:
    """Due, then published, then acknowledged; the subscriber beside the broker has it at once."""
    rows = read_table(folder, MessageRow)
    assert len(rows) == 2 * (N_SMALL + N_LARGE)
    for row in rows:
        assert row.acknowledged_s is not None
        assert row.arrived_s is not None
        assert row.due_s <= row.published_s <= min(row.acknowledged_s, row.arrived_s)


def test_what_was_withheld_is_in_the_tables(folder: Path) -> None:
    """The table has Penstock alone, and times within the run."""
    withheld = read_table(folder, WithheldRow)
    assert {row.broker for row in withheld} == {"penstock"}
    assert all(row.begin_s <= row.end_s for row in withheld)
    assert all(row.end_s > 0 for row in withheld)
    assert {row.subscriber for row in withheld} == {"dashboard"}


@pytest.mark.parametrize("broker", ["penstock", "mosquitto"])
def test_a_link_is_bad_from_the_time_that_the_trace_names(broker: str, folder: Path) -> None:
    """Each broker has its own link, which is good, bad once, and good again; no change is early."""
    rows = [row for row in read_table(folder, LinkRow) if row.broker == broker]
    assert [row.profile for row in rows] == ["good", "bad", "good"]
    assert [row.is_impaired for row in rows] == [False, True, False]
    _, bad, good = rows
    assert bad.begin_s >= 1
    assert bad.end_s == good.begin_s >= 2


def test_each_broker_has_a_network_of_its_own_in_the_same_round(folder: Path) -> None:
    """Packets that the harness dropped, and how late it was, are told for each."""
    runs = read_table(folder, RunRow)
    assert [(row.broker, row.round) for row in runs] == [("penstock", 1), ("mosquitto", 1)]
    assert all(row.deliveries >= row.late_deliveries for row in runs)
    packets = read_table(folder, PacketsRow)
    assert [(row.broker, row.link, row.direction) for row in packets] == [
        (broker, "cloud-edge", direction)
        for broker in ("penstock", "mosquitto")
        for direction in ("upstream", "downstream")
    ]
    assert all(row.taken > 0 for row in packets)
    for row in runs:
        dropped = sum(each.harness_dropped for each in packets if each.broker == row.broker)
        assert row.harness_dropped == dropped


def test_the_load_of_the_machine_is_told_for_the_traffic(folder: Path) -> None:
    """One look follows the other, from the beginning to the end."""
    rows = read_table(folder, MachineRow)
    assert all(one.end_s == other.begin_s for one, other in pairwise(rows))
    assert rows[-1].end_s >= 3
    assert all(row.busy_share > 0 for row in rows)


def test_memory_is_known_from_before_the_beginning(folder: Path) -> None:
    """For each broker, in the order of time."""
    rows = read_table(folder, MemoryRow)
    for broker, of_broker in groupby(rows, lambda row: row.broker):
        times = [row.at_s for row in of_broker]
        assert times == sorted(times), broker
        assert times[0] < 0
        assert times[-1] > 3
    assert all(row.rss_bytes > 1_000_000 for row in rows)


def test_a_result_tells_what_it_is_of(folder: Path) -> None:
    """The scenario as it was run, versions, and how busy each broker was."""
    info = read_run_info(folder)
    assert info.length == "short"
    assert info.command == "penstock netem run bad-phase.yaml --short"
    assert info.versions.keys() == {"penstock", "mosquitto"}
    assert info.versions["mosquitto"].startswith("mosquitto 2")
    shares = {each.broker: each.share for each in info.processor}
    assert shares.keys() == {"penstock", "mosquitto"}
    assert 0 < shares["penstock"] < 1
    # The kernel counts hundredths of a second, which is what mosquitto takes, or less.
    assert 0 <= shares["mosquitto"] < 1
    assert (folder / "report.md").exists()


def test_a_broker_that_does_not_start_ends_it_with_status_1(tmp_path: Path) -> None:
    """The failure names it; no folder and no network are left."""
    broken = SCENARIO.replace("{kind: mosquitto}", "{kind: mosquitto, lines: [no_such_key 1]}")
    (tmp_path / "broken.yaml").write_text(broken)
    run = start(["broken.yaml", "--brokers", "mosquitto", "--no-plots"], tmp_path)
    _, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 1
    assert "penstock netem: broker mosquitto has ended with status 3: " in err
    assert "no_such_key" in err
    assert "Traceback" not in err
    assert not (tmp_path / "netem-broken").exists()
    assert not left_behind(run.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_everything_down(number: signal.Signals, tmp_path: Path) -> None:
    """At any moment, here with clients at work; the status is that of a program so ended."""
    (tmp_path / "bad-phase.yaml").write_text(SCENARIO)
    run = start(["bad-phase.yaml", "--brokers", "penstock", "--no-plots"], tmp_path)
    assert run.stderr is not None
    for line in run.stderr:
        if "calm" in line:
            break
    assert left_behind(run.pid)
    run.send_signal(number)
    _, err = run.communicate(timeout=SECONDS)
    assert err.endswith("penstock netem: taken down\n")
    assert run.returncode == 128 + number
    assert not left_behind(run.pid)
    assert not (tmp_path / "netem-bad-phase").exists()
