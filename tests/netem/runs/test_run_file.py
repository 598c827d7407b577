from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.profiles import Bursts, Direction
from penstock.netem.runs import provenance
from penstock.netem.runs.impairments import Impairment, OnOffPlan, TracePlan
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.provenance import commit, machine, python
from penstock.netem.runs.run_file import ProcessorShare, RunInfo, read_run_info, write_run_info
from penstock.netem.runs.scenario import (
    Broker,
    HostPlan,
    LinkPlan,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    Target,
    Topology,
)

SCENARIO = Scenario(
    name="two-sizes",
    title="Two sizes",
    about="A try.",
    topology=Topology(
        {"cloud": HostPlan(), "edge": HostPlan("bbr")}, [LinkPlan(("cloud", "edge"), "good")]
    ),
    broker_host="cloud",
    brokers={
        "adaptive": Broker("penstock", settings={"plugins": {"withholding": {"policy": None}}}),
        "other": Broker("command", command=["other", "{directory}"]),
    },
    traffic={"small": Stream("s/{n}", 100, 0.5, arrivals="poisson")},
    publishers={"pub": Publisher("cloud", ["small"], brokers=["adaptive"])},
    subscribers={"sub": Subscriber("edge", ["#"], user_properties={"threshold_l": "0.1"})},
    profiles={"good": ProfilePlan(downstream=Direction(0.02, 1e6, loss=Bursts(0.01, 0.2)))},
    impairments=[
        Impairment("cloud-edge", on_off=OnOffPlan("good", "good", 1.0, 2.5)),
        Impairment("cloud-edge", trace=TracePlan((0.0, 1.5), ("good", "good"), 3.0)),
    ],
    targets=[Target("small p90", "adaptive", over="other", at_most=0.5)],
    duration_seconds=10.0,
    seeds=[1, 2],
)

INFO = RunInfo(
    scenario=SCENARIO,
    length="short",
    command="penstock netem run two-sizes --short",
    commit=None,
    machine="2 cores, µ-model",
    python="CPython 3.11.9",
    date="2026-01-02T03:04:05+00:00",
    versions={"adaptive": "Penstock 0.1.0", "other": "other 1"},
    processor=[ProcessorShare("adaptive", 1, 0.05)],
    remarks=["seed 1: processors were busy"],
)


def test_what_was_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Pairs stay pairs and bursts stay bursts, through JSON."""
    assert write_run_info(tmp_path, INFO) == tmp_path / "run.json"
    assert read_run_info(tmp_path) == INFO


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A folder without a run says which file it lacks."""
    with pytest.raises(NetemError, match=r"run\.json: .*No such file"):
        read_run_info(tmp_path)
    with pytest.raises(NetemError, match=r"nowhere/run\.json"):
        write_run_info(tmp_path / "nowhere", INFO)


def test_each_mistake_in_a_file_is_named_with_its_place(tmp_path: Path) -> None:
    """A file of another kind or version is refused, line by line."""
    path = write_run_info(tmp_path, INFO)
    mapping = json.loads(path.read_text())
    mapping["scenario"]["duration_seconds"] = "ten"
    mapping["length"] = "long"
    path.write_text(json.dumps(mapping))
    with pytest.raises(NetemError) as caught:
        read_run_info(tmp_path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(path), "scenario.duration_seconds"],
        [str(path), "length"],
    ]
    path.write_text("no JSON")
    with pytest.raises(NetemError, match=r"run\.json: Expecting value"):
        read_run_info(tmp_path)


def test_the_machine_and_the_commit_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package is no checkout, even within somebody else's."""
    assert "cores" in machine()
    assert "3." in python()
    assert commit()
    monkeypatch.setattr(provenance, "FOLDER", tmp_path)
    assert commit() is None
