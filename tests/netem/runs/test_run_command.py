from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from penstock.netem.__main__ import main
from penstock.netem.errors import NetemError
from penstock.netem.runs import run_command
from penstock.netem.runs.impairments import Impairment, OnOffPlan
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.run_command import choose, command_line, ended_by_signals
from penstock.netem.runs.scenario import Broker, Publisher, Subscriber, Target
from tests.helpers.experiments import scenario
from tests.helpers.kinds import kind_scenario
from tests.helpers.networks import NEEDS_ROOT

SMALL = """
title: Small
about: One broker, one publisher, one subscriber.
profiles: {good: {}}
topology:
  hosts: {cloud: {}, edge: {}}
  links: [{between: [cloud, edge], profile: good}]
broker_host: cloud
brokers: {ours: KIND}
traffic: {small: {topic: alarms, payload_bytes: 100, period_seconds: 0.5}}
publishers: {sensor: {host: cloud, streams: [small]}}
subscribers: {dashboard: {host: edge, filters: [alarms]}}
duration_seconds: 1
"""

WITH_TARGETS = scenario(
    brokers={name: Broker("penstock") for name in ("ours", "other", "third")},
    publishers={
        "all": Publisher("cloud", ["small"]),
        "two": Publisher("cloud", ["large"], brokers=["ours", "other"]),
    },
    subscribers={"some": Subscriber("edge", ["#"], brokers=["other", "third"])},
    targets=[
        Target("lost", "ours", at_most=0),
        Target("memory", "ours", over="other", at_most=0.2),
        Target("lost", "other", at_most=0),
    ],
)


def test_brokers_and_seeds_are_chosen() -> None:
    """What is said of the others goes with them."""
    chosen = choose(WITH_TARGETS, "third, ours", "7,8")
    assert list(chosen.brokers) == ["third", "ours"]
    assert [(each.figure, each.broker) for each in chosen.targets] == [("lost", "ours")]
    assert [each.brokers for each in chosen.publishers.values()] == [None, ["ours"]]
    assert [each.brokers for each in chosen.subscribers.values()] == [["third"]]
    assert chosen.seeds == [7, 8]
    assert choose(WITH_TARGETS, None, "1,01,2,1").seeds == [1, 2]
    assert choose(WITH_TARGETS, None, None) == WITH_TARGETS


def test_kinds_are_chosen() -> None:
    """Those of a scenario that has kinds; the command says which."""
    chosen = choose(kind_scenario(), None, "3", "outage")
    assert (list(chosen.kinds), chosen.seeds) == (["outage"], [3])
    assert list(chosen.subscribers) == ["outage-cubic-direct"]
    words = command_line("links", short=False, brokers=None, seeds="3", kinds="outage")
    assert words == "penstock netem run links --seeds 3 --kinds outage"
    for plan, allowed in ((kind_scenario(), "loss, outage"), (WITH_TARGETS, "none: ")):
        with pytest.raises(typer.BadParameter, match=f"read 'cliff'; allowed: {allowed}"):
            choose(plan, None, None, "cliff")


def test_brokers_that_a_target_compares_run_in_one_round() -> None:
    """Those that are chosen may fall into other rounds than in the whole scenario."""
    targets = [Target("small p50", "ours", over="other", at_most=1, is_timing=True)]
    plan = replace(WITH_TARGETS, targets=targets, side_by_side=2)
    assert choose(plan, "third,other", None).groups() == [["third", "other"]]
    with pytest.raises(NetemError, match=r"--brokers: targets.0.over: read 'other'; allowed: "):
        choose(plan, "ours,third,other", None)


def test_seeds_with_which_a_link_is_never_bad_are_refused() -> None:
    """Beside one with which it is bad, such a seed is allowed: links differ by chance."""
    in_turn = OnOffPlan("good", "bad", mean_good_seconds=3, mean_bad_seconds=1)
    link = Impairment("cloud-edge", on_off=in_turn)
    profiles = dict.fromkeys(("good", "bad"), ProfilePlan())
    plan = replace(WITH_TARGETS, impairments=[link], profiles=profiles, duration_seconds=3.0)

    def is_bad_in_time(seed: int) -> bool:
        _, (first_bad_at, _) = islice(plan.changes_of(link, seed).steps(), 2)
        return first_bad_at < plan.duration_seconds

    bad = next(seed for seed in range(100) if is_bad_in_time(seed))
    good = next(seed for seed in range(100) if not is_bad_in_time(seed))
    assert choose(plan, None, f"{bad},{good}").seeds == [bad, good]
    words = rf"^--seeds: impairments\.0\.on_off: read no bad phase in 3 s; allowed: .* than {good}$"
    with pytest.raises(NetemError, match=words):
        choose(plan, None, str(good))


@pytest.mark.parametrize(
    ("brokers", "seeds", "words"),
    [
        ("ours,mosquito", None, "read 'mosquito'; allowed: ours, other, third"),
        (",", None, "read none"),
        (None, "1,x", "read '1,x'; allowed: whole numbers"),
        (None, "-1", "read '-1'; allowed: whole numbers"),
        (None, "9007199254740992", "allowed: whole numbers from 0 to 9007199254740991 with commas"),
        (None, "", "read ''; allowed: whole numbers"),
    ],
)
def test_a_wrong_choice_is_named(brokers: str | None, seeds: str | None, words: str) -> None:
    """With what is allowed."""
    with pytest.raises(typer.BadParameter) as raised:
        choose(WITH_TARGETS, brokers, seeds)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["transient-congestion", "--congestion-control", "vegan"],
            "congestion control: read 'vegan'; allowed here: ",
        ),
        (["transient-congestin"], "allowed: bystanders, "),
        (["transient-congestion", "--brokers", "emqx"], "read 'emqx'; allowed: mosquitto, "),
        (["transient-congestion", "--seeds", "one"], "read 'one'"),
        (["transient-congestion", "--format", "xlsx"], "read 'xlsx'; allowed: parquet, csv"),
        (["transient-congestion", "--figures", "/none/f.json"], "/none/f.json: no folder /none"),
        ([], "SCENARIO"),
    ],
)
def test_wrong_arguments_end_with_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made."""
    assert main(["run", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_without_root_it_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And leaves no folder behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["run", "transient-congestion", "--short"]) == 2
    assert capsys.readouterr().err == (
        "penstock netem: network namespaces need root; run it with sudo\n"
    )
    assert not list(tmp_path.iterdir())


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("{kind: command, command: [no-such-broker]}", 2, "no-such-broker is not installed"),
        ("{kind: penstock}", 1, "the run cannot go on: [Errno 28] No space left on device"),
    ],
)
def test_what_cannot_be_leaves_no_folder(
    kind: str,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A program that is missing, a disk that is full."""

    def run_on_a_full_disk(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if status == 1:
        monkeypatch.setattr(run_command, "run_scenario", run_on_a_full_disk)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL.replace("KIND", kind))
    assert main(["run", "small.yaml"]) == status
    assert words in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["small.yaml"]


def test_the_command_that_makes_it_again_says_what_was_chosen() -> None:
    """Quoted as a shell wants it."""
    assert command_line("a b.yaml", short=True, brokers="x,y", seeds="1,2") == (
        "penstock netem run 'a b.yaml' --short --brokers x,y --seeds 1,2"
    )
    plain = command_line("field-run", short=False, brokers=None, seeds=None)
    assert plain == "penstock netem run field-run"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore what SIGHUP does, which differs by how tests are started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_once(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second one does not disturb what is taken down; handlers are those from before then."""
    before = signal.getsignal(number)
    taken_down = []

    def run() -> None:
        with ended_by_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                taken_down.append("everything")

    with pytest.raises(SystemExit) as raised:
        run()
    assert raised.value.code == 128 + number
    assert taken_down == ["everything"]
    assert signal.getsignal(number) == before
    assert capsys.readouterr().err == "penstock netem: taken down\n"


@pytest.mark.usefixtures("handlers")
def test_under_nohup_a_run_outlives_its_terminal() -> None:
    """Half an hour is long for a connection to the machine where it is run."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
