"""The report: what was found is in it, and it is made from the folder alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.estimates import Standing
from penstock.netem.figures.figure_file import read_figure_file
from penstock.netem.figures.measures import Measures
from penstock.netem.figures.report import check_figures, read_tables, to_markdown, write_report
from penstock.netem.figures.sections import sections
from penstock.netem.figures.table_files import Format
from penstock.netem.runs.scenario import Broker, Edges, Target
from tests.helpers.kinds import MADE_UP, kind_run, kind_scenario
from tests.helpers.netem_runs import INFO, SCENARIO, whole_run, with_scenario, write_run


def rows_of(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table below a heading by their first cell, without its head."""
    _, _, section = text.partition(f"## {heading}")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("form", Format)
def test_the_report_holds_what_was_found(tmp_path: Path, form: Format) -> None:
    """Figures by broker and stream, counted by hand."""
    write_run(tmp_path, INFO, whole_run(), form)
    verdicts = write_report(tmp_path, with_plots=False)
    assert [(each.figure, each.standing) for each in verdicts] == [
        ("small p90", Standing.NOT_SHOWN),
        ("lost", Standing.MET),
    ]
    text = (tmp_path / "report.md").read_text()
    assert text.startswith(
        "# Made up\n\nA run that nobody made, to count by hand.\n\n"
        "## Verdict: 1 of 2 targets met, 1 not shown\n"
    )
    ratio = "small p90: adaptive 200 ms, mosquitto 2.0 s: 0.10 of it, 1 unit (at most 0.5)"
    assert f"- not shown: {ratio}\n" in text
    # 20 of 30 small ones took 50 ms, 10 of them 200 ms: (20 * 50 + 10 * 200) / 30 = 100.
    assert rows_of(text, "Latency of `small`: 100 B every 1 s at QoS 1") == {
        "adaptive": ["50 ms", "200 ms", "200 ms", "100 ms", "200 ms", "30", "0", "1"],
        "mosquitto": ["50 ms", "2.0 s", "2.0 s", "700 ms", "2.0 s", "30", "0", "1"],
    }
    assert rows_of(text, "Latency of `small` over mosquitto's") == {
        "adaptive": ["1.00", "0.10", "0.10", "0.14", "100.0 %", "1"]
    }
    assert rows_of(text, "Promises")["adaptive"] == ["36", "0", "0", "0", "0", "0"]
    assert rows_of(text, "Memory") == {
        "adaptive": ["30.0 MB", "2.0 MB", "0.0 MB", "0.25", "1"],
        "mosquitto": ["30.0 MB", "8.0 MB", "0.0 MB", "", "1"],
    }
    assert rows_of(text, "Withholding") == {"adaptive": ["11.0 s", "90.0 %", "0.0 s", "2", "1"]}
    assert rows_of(text, "Processor") == {"adaptive": ["5.0 %", "1"], "mosquitto": ["1.0 %", "1"]}
    assert (
        "| router-edge | lossy: 200 ms round trip, 2,500 kB/s, 20 % lost | 1 | 10.0 s | 0.00 s |"
        in text
    )
    assert "| router-edge | good: 40 ms round trip, 2,500 kB/s | 2 | 20.0 s | 0.00 s |" in text


def test_without_plots_the_report_has_the_same_words(tmp_path: Path) -> None:
    """No picture is drawn and none is named."""
    write_run(tmp_path, INFO, whole_run())
    write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    for picture in tmp_path.glob("*.png"):
        picture.unlink()
    write_report(tmp_path, with_plots=False)
    assert not list(tmp_path.glob("*.png"))
    fewer = (tmp_path / "report.md").read_text().splitlines()
    assert "![" not in "".join(fewer)
    assert set(fewer) < set(lines)


def test_a_report_without_targets_says_what_makes_it_doubtful(tmp_path: Path) -> None:
    """Before any figure."""
    info = with_scenario(dataclasses.replace(INFO, remarks=["seed 1: busy"]), targets=[])
    write_run(tmp_path, info, whole_run())
    write_report(tmp_path, with_plots=False)
    text = (tmp_path / "report.md").read_text()
    assert text.index("**Doubtful:** seed 1: busy.\n") < text.index("## ")


def test_the_report_says_how_to_run_it_again(tmp_path: Path) -> None:
    """Command, versions, machine, plots beside it; and what makes it doubtful."""
    remark = "seed 1: processors were 98 % busy"
    write_run(tmp_path, dataclasses.replace(INFO, remarks=[remark]), whole_run())
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    for said in (
        f"**Doubtful:** {remark}.\n",
        "```sh\npenstock netem run made-up\n```",
        "- Broker `mosquitto`: mosquitto 2.0.11.",
        "commit abc1234, CPython 3.11.9, 2026-01-02T03:04:05+00:00",
        "2 cores, some model, 8 GiB, Linux 6.1.",
        "- `sub` on edge subscribes to `#` at QoS 1.",
        "30 s of traffic, up to 10 s more to arrive; seeds 1.",
    ):
        assert said in text
    for name in ("latency.png", "distribution.png", "memory.png"):
        assert f"]({name})" in text
        assert (tmp_path / name).exists()


def test_what_is_missing_or_missed_comes_first() -> None:
    """A lost message and a figure without data miss; a short run's timing is not judged."""
    tables = whole_run()
    lost = tables.deliveries.pop(0)
    assert (lost.broker, lost.stream) == ("adaptive", "small")
    tables.memory.clear()
    targets = [*SCENARIO.targets, Target("memory", "adaptive", over="mosquitto", at_most=0.2)]
    scenario = dataclasses.replace(SCENARIO, targets=targets)
    info = dataclasses.replace(INFO, scenario=scenario, length="short")
    measures = Measures(scenario, tables)
    verdicts = [measures.judge(target, "short") for target in targets]
    assert [each.word for each in verdicts] == ["not judged", "missed", "missed"]
    text = to_markdown(info, verdicts, [], sections(info, measures))
    assert "## Verdict: 0 of 2 targets met, 2 missed\n" in text
    assert "- not judged: small p90" in text
    assert "- missed: lost: adaptive 1 (at most 0)\n" in text
    assert "- missed: memory: adaptive -, mosquitto -, no ratio (at most 0.2)\n" in text
    # Its latency is infinite, so p99, mean and greatest are.
    assert rows_of(text, "Latency of `small`")["adaptive"][2:5] == ["∞", "∞", "∞"]


def test_figures_have_intervals_over_units() -> None:
    """Twelve seeds with a link are twelve units; in four, small messages take twice as long."""
    info = with_scenario(seeds=list(range(12)))
    tables = whole_run(info)
    tables.deliveries[:] = [
        row._replace(delivered_s=row.delivered_s + 0.2)
        if row.broker == "adaptive" and row.seed < 4 and 10 <= row.number < 20
        else row
        for row in tables.deliveries
    ]
    measures = Measures(info.scenario, tables)
    verdicts = [measures.judge(target, "full") for target in info.scenario.targets]
    text = to_markdown(info, verdicts, [], sections(info, measures))
    assert "## Verdict: 2 of 2 targets met\n" in text
    ratio = "adaptive 400 ms, mosquitto 2.0 s: 0.20 (0.10 to 0.20) of it, 12 units (at most 0.5)"
    assert f"- met: small p90: {ratio}\n" in text
    assert "- met: lost: adaptive 0 (at most 0)\n" in text
    row = rows_of(text, "Latency of `small`")["adaptive"]
    assert row[:2] == ["50 ms (50 ms to 50 ms)", "400 ms (200 ms to 400 ms)"]
    assert row[4:] == ["400 ms", "360", "0", "12"]
    assert rows_of(text, "Latency of `small` over")["adaptive"][1] == "0.20 (0.10 to 0.20)"
    memory = rows_of(text, "Memory")["adaptive"]
    assert memory[3:] == ["0.25 (0.25 to 0.25)", "12"]


def test_the_tables_are_written_for_pages(tmp_path: Path) -> None:
    """With the verdicts, the command of the run, and what makes it doubtful."""
    write_run(tmp_path, dataclasses.replace(INFO, remarks=["seed 1: busy"]), whole_run())
    figures = tmp_path / "figures.json"
    write_report(tmp_path, figures, with_plots=False)
    origin, tables = read_figure_file(figures)
    assert str(origin) == (
        "`penstock netem run made-up`; commit abc1234, 2026-01-02, CPython 3.11.9, 2 cores, "
        "some model, 8 GiB, Linux 6.1. **Doubtful:** seed 1: busy."
    )
    assert tables["verdicts"].rows == [
        [
            "small p90",
            "adaptive 200 ms, mosquitto 2.0 s: 0.10 of it, 1 unit",
            "at most 0.5",
            "not shown",
        ],
        ["lost", "adaptive 0", "at most 0", "met"],
    ]
    assert tables["small latency"].columns[:3] == ["broker", "p50", "p90"]
    assert tables["small over mosquitto"].rows[0][:3] == ["adaptive", "1.00", "0.10"]


def test_figures_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    """Before a run, and after it."""
    write_run(tmp_path, INFO, whole_run())
    file = tmp_path / "none" / "figures.json"
    with pytest.raises(NetemError, match=f"^--figures: {file}: no folder"):
        check_figures(file)
    with pytest.raises(RunError, match=f"^{file}: "):
        write_report(tmp_path, file)


def test_missing_and_wrong_files_are_named(tmp_path: Path) -> None:
    """Each of them, whatever it is."""
    with pytest.raises(NetemError, match=r"run\.json"):
        write_report(tmp_path)
    write_run(tmp_path, INFO, whole_run())
    (tmp_path / "links.parquet").unlink()
    with pytest.raises(NetemError, match=r"links\.csv"):
        write_report(tmp_path)
    (tmp_path / "links.csv").write_text("neither,nor\n")
    with pytest.raises(NetemError, match=r"links\.csv: read columns"):
        read_tables(tmp_path)


def test_a_target_of_no_figure_is_named(tmp_path: Path) -> None:
    """Before anything is drawn."""
    scenario = dataclasses.replace(SCENARIO, targets=[Target("speed", "adaptive", at_most=1)])
    write_run(tmp_path, dataclasses.replace(INFO, scenario=scenario), whole_run())
    with pytest.raises(NetemError, match="'speed'; allowed: small p50"):
        write_report(tmp_path)
    assert not (tmp_path / "latency.png").exists()


def test_the_report_says_what_stands_between_a_broker_and_its_clients(tmp_path: Path) -> None:
    """A sidecar, and the brokers at sites, each with what the scenario sets."""
    edges = Edges(["edge"], "mosquitto", lines=["topic # in 1"])
    brokers = {
        "adaptive": Broker("penstock", edges=edges),
        "mosquitto": Broker("mosquitto", sidecar={"drain_seconds": 0}),
    }
    write_run(tmp_path, with_scenario(brokers=brokers), whole_run())
    write_report(tmp_path, with_plots=False)
    text = (tmp_path / "report.md").read_text()
    assert "- Broker `adaptive`: Penstock 0.1.0, edge brokers on edge, `topic # in 1`." in text
    assert '- Broker `mosquitto`: mosquitto 2.0.11, sidecar `{"drain_seconds": 0}`.' in text


def test_a_report_of_kinds_of_links_has_their_tables_and_what_was_drawn(tmp_path: Path) -> None:
    """Also of several rounds with a seed, which have no memory of a broker's process."""
    scenario = kind_scenario()
    scenario.profiles["lossy"].drawn["downstream.loss"] = (0.1, 0.25)
    versions = {**dict.fromkeys(scenario.brokers, "some 1.0"), "through haproxy": "haproxy 2.6"}
    info = dataclasses.replace(INFO, scenario=scenario, versions=versions, processor=[])
    write_run(tmp_path, info, kind_run(scenario, MADE_UP).tables)
    verdicts = write_report(tmp_path, tmp_path / "figures.json")
    assert len(verdicts) == 8
    text = (tmp_path / "report.md").read_text()
    assert "## What oracle gains, and the share of it that policies close; over none's\n" in text
    assert "Latency of `small`" not in text
    assert "- `outage`: 1 on a link, `small`, `large`.\n" in text
    assert "20 % lost; drawn for each link and seed: `downstream.loss` 0.1 to 0.25.\n" in text
    assert "- Through haproxy: haproxy 2.6.\n" in text
    assert (tmp_path / "latency.png").exists()
    _, tables = read_figure_file(tmp_path / "figures.json")
    assert {"verdicts", "kinds", "kinds large", "kinds lanes", "kinds latency"} <= tables.keys()
    assert tables["kinds"].rows[0][:3] == ["loss", "cubic", "direct"]
