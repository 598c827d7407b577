"""Scenarios in files: all that come with Penstock, and what a user may get wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.runs.impairments import Impairment, OnOffPlan, TracePlan
from penstock.netem.runs.scenario import (
    COMMON_FIGURES,
    STREAM_FIGURES,
    Broker,
    HostPlan,
    LinkPlan,
    Measurements,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    Target,
    Topology,
)
from penstock.netem.runs.scenario_file import FOLDER, names, read_scenario
from tests.helpers.experiments import SMALL_FILE, write_scenario

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs/reference/scenarios.md"
MOST_SHORT_SECONDS = 15.0


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", names())
def test_each_scenario_of_our_own_is_read(name: str, *, short: bool) -> None:
    """In both lengths; the short one for CI, with two brokers and one seed."""
    scenario = read_scenario(name, short=short)
    assert scenario.name == name
    assert scenario.title
    assert scenario.targets
    if short:
        assert scenario.duration_seconds <= MOST_SHORT_SECONDS
        assert len(scenario.brokers) == 2
        assert scenario.rounds == 1


@pytest.mark.parametrize("name", names())
def test_a_short_run_is_judged_by_more_than_timings(name: str) -> None:
    """Lost messages are a finding in each length, on whatever machine."""
    targets = read_scenario(name, short=True).targets
    assert any(each.figure == "lost" and not each.is_timing for each in targets)


@pytest.mark.parametrize("name", names())
def test_a_short_run_says_what_it_is_about(name: str) -> None:
    """Not what the full length is about: its report begins with that."""
    assert read_scenario(name, short=True).about != read_scenario(name).about


def test_what_comes_with_penstock_stands_in_its_folder() -> None:
    """Files are named after what they hold, and there are no others."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.yaml" for name in names()}
    assert "transient-congestion" in names()


@pytest.mark.parametrize("short", [False, True])
def test_the_example_of_the_documentation_is_read(tmp_path: Path, *, short: bool) -> None:
    """In both lengths."""
    found = re.search(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert found is not None
    scenario = read_scenario(str(write_scenario(tmp_path, found[1])), short=short)
    assert ("patient" in scenario.brokers) is not short


def test_the_documentation_names_every_key_and_figure() -> None:
    """In its table, or below it."""
    text = DOCUMENTATION.read_text()
    kinds: tuple[type[Any], ...] = (
        Scenario,
        Topology,
        HostPlan,
        LinkPlan,
        Impairment,
        OnOffPlan,
        TracePlan,
        Stream,
    )
    kinds += (Publisher, Subscriber, Broker, Measurements, Target)
    keys = {key.name for kind in kinds for key in dataclasses.fields(kind)} - {"name"}
    for word in (*keys, *COMMON_FIGURES, "inherits"):
        assert f"`{word}`" in text, word
    assert all(each in text for each in STREAM_FIGURES)


def test_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    """Its name is the scenario's."""
    scenario = read_scenario(str(write_scenario(tmp_path, SMALL_FILE)))
    assert scenario.name == "mine"
    assert isinstance(scenario, Scenario)
    assert scenario.subscribers["sub"].qos == 1


def test_a_name_that_none_has_is_told_with_those_there_are() -> None:
    """A user sees what to write."""
    with pytest.raises(NetemError, match=r"read 'none-such'; allowed: .*transient-congestion"):
        read_scenario("none-such")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The name stands in the text."""
    with pytest.raises(NetemError, match="none-such"):
        read_scenario(str(tmp_path / "none-such.yaml"))


def test_what_is_short_lies_over_the_rest(tmp_path: Path) -> None:
    """Mappings key by key; null takes a key out; lists are replaced."""
    over = """
short:
  brokers: {other: null, third: {kind: amqtt}}
  traffic: {small: {payload_bytes: 50}}
  impairments: []
  targets: null
"""
    file = write_scenario(tmp_path, SMALL_FILE + over)
    full, short = read_scenario(str(file)), read_scenario(str(file), short=True)
    assert full == read_scenario(str(write_scenario(tmp_path, SMALL_FILE)))
    assert list(short.brokers) == ["ours", "third"]
    assert short.traffic["small"].payload_bytes == 50
    assert short.traffic["small"].topic == "a/b"
    assert not short.impairments
    assert not short.targets
    assert short.duration_seconds == 60


def test_a_scenario_inherits_from_another(tmp_path: Path) -> None:
    """Laid over it key by key, short lengths over each other; a null removes a key."""
    short = "short: {duration_seconds: 6, brokers: {other: null}, targets: null}"
    (tmp_path / "base.yaml").write_text(SMALL_FILE + short)
    heir = """
inherits: base.yaml
title: C
congestion_control: bbr
brokers: {third: {kind: amqtt}, fourth: {kind: amqtt}}
short: {brokers: {third: null}}
"""
    file = str(write_scenario(tmp_path, heir))
    full, short_one = read_scenario(file), read_scenario(file, short=True)
    assert (full.title, full.about, full.congestion_control) == ("C", "B", "bbr")
    assert list(full.brokers) == ["ours", "other", "third", "fourth"]
    assert full.name == "mine"
    assert list(short_one.brokers) == ["ours", "fourth"]
    assert (short_one.duration_seconds, short_one.targets) == (6, [])


@pytest.mark.parametrize(
    ("heir", "words"),
    [
        ("inherits: 7", "mine.yaml: inherits: read 7; allowed: a scenario, or a file"),
        ("inherits: none-such", "mine.yaml: inherits: scenario: read 'none-such'; allowed: "),
        (
            "inherits: other.yaml",
            "other.yaml: inherits: read 'mine.yaml'; allowed: a scenario that",
        ),
        ("inherits: gone.yaml", "gone.yaml: "),
        ("inherits: field-run\nshort: 7", "mine.yaml: short: read 7; allowed: a mapping"),
    ],
)
def test_an_inheritance_that_cannot_be_is_told(tmp_path: Path, heir: str, words: str) -> None:
    """With the file in which it stands; a circle too."""
    (tmp_path / "other.yaml").write_text("inherits: mine.yaml")
    with pytest.raises(NetemError, match=re.escape(words)):
        read_scenario(str(write_scenario(tmp_path, heir)))


@pytest.mark.parametrize(
    ("over", "line"),
    [
        ("short: 7", "short: read 7; allowed: a mapping"),
        ("short:", "short: read None; allowed: a mapping"),
        ("short: {duration_seconds: 0}", "short.duration_seconds: read 0; allowed: greater than 0"),
        ("short: {seeds: [1, x]}", "short.seeds.1: read 'x'; allowed: a valid integer"),
        ("short: {brokers: {other: null}}", "targets.0.over: read 'other'; allowed: ours"),
        (
            "short: {brokers: {third: {kind: mosquitto, command: [x]}}}",
            "short.brokers.third.command: no key of kind mosquitto; allowed: beside command",
        ),
        (
            "short: {name: x}",
            "name: read a key; allowed: no name; the scenario has that of its file",
        ),
        ("short: {nane: x}", "short.nane: read an unknown key; allowed: one of about, brok"),
    ],
)
def test_a_mistake_of_the_short_length_is_told_where_it_stands(
    tmp_path: Path, over: str, line: str
) -> None:
    """Under ``short`` where that is its place; where it only does not fit any more, there."""
    file = write_scenario(tmp_path, SMALL_FILE + over)
    with pytest.raises(NetemError) as told:
        read_scenario(str(file), short=True)
    assert str(told.value).startswith(f"{file}: {line}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "title: read nothing; allowed: a value"),
        ("7", "allowed: a mapping"),
        ("[a]", "allowed: a mapping"),
    ],
)
def test_a_file_without_keys_is_told(tmp_path: Path, text: str, told: str) -> None:
    """An empty one too."""
    with pytest.raises(NetemError, match=told):
        read_scenario(str(write_scenario(tmp_path, text)))


def test_a_name_for_a_file_is_of_letters_digits_and_dashes(tmp_path: Path) -> None:
    """Results are called by it."""
    file = tmp_path / "my own.yaml"
    file.write_text(SMALL_FILE)
    with pytest.raises(NetemError, match="name: read 'my own'; allowed: letters, digits and dash"):
        read_scenario(str(file))
