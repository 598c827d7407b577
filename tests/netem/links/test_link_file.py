from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.link_file import read_link
from penstock.netem.links.link_variation import OnOff, Trace
from penstock.netem.links.profiles import Bursts, Direction

ROOT = Path(__file__).resolve().parents[3]

TWO = "profiles: {good: {}, bad: {upstream: {delay: 0.5}}}\nbegin: good\n"
"""Two states, and no plan yet."""


def write(folder: Path, text: str) -> Path:
    """Return a file with this text."""
    file = folder / "link.yaml"
    file.write_text(text)
    return file


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    """Each state has its two directions, and the plan its states."""
    found = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/how-to/netem.md").read_text(), re.DOTALL)
    assert found is not None
    plan = read_link(write(tmp_path, found[1]))
    assert set(plan.profiles) == {"good", "lossy"}
    good, lossy = plan.profiles["good"], plan.profiles["lossy"]
    assert plan.begin == good
    assert good.name == "good"
    assert lossy.upstream == Direction(0.1, 2_500_000, loss=0.2)
    assert lossy.downstream.loss == Bursts(0.01, 0.25)
    assert plan.changes == OnOff(good, lossy, 17.5, 17.5, 1)


def test_the_documentation_names_every_key_of_a_direction() -> None:
    """The table has a row for each."""
    text = (ROOT / "docs/reference/netem.md").read_text()
    assert all(f"\n| `{key.name}` | " in text for key in dataclasses.fields(Direction))


def test_a_trace_names_its_states(tmp_path: Path) -> None:
    """Times and states, one for each."""
    text = TWO + "trace: {at_seconds: [0, 2.5], profiles: [good, bad], repeat_seconds: 9}"
    plan = read_link(write(tmp_path, text))
    states = (plan.profiles["good"], plan.profiles["bad"])
    assert plan.changes == Trace((0.0, 2.5), states, 9.0)


def test_what_a_state_draws_follows_the_seed(tmp_path: Path) -> None:
    """Within its range; the same each time."""
    text = (
        "profiles: {good: {}, bad: {downstream: {rate: 1}, drawn: {downstream.rate: [10, 1000]}}}\n"
        "begin: good\n"
        "on_off: {good: good, bad: bad, mean_good_seconds: 1, mean_bad_seconds: 1, seed: SEED}\n"
    )
    rates = [
        read_link(write(tmp_path, text.replace("SEED", seed))).profiles["bad"].downstream.rate
        for seed in ("1", "1", "2")
    ]
    assert rates[0] == rates[1] != rates[2]
    assert all(rate is not None and 10 <= rate <= 1000 for rate in rates)


def test_without_a_plan_a_link_stays_as_it_is(tmp_path: Path) -> None:
    """Neither on_off nor trace is needed; a direction of which nothing is said does nothing."""
    plan = read_link(write(tmp_path, TWO))
    assert plan.changes is None
    assert plan.begin.upstream == plan.begin.downstream == Direction()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "profiles: read nothing; allowed: a value"),
        ("profiles: [1\n", "link.yaml"),
        ("profiles: {}\nbegin: good", "begin: read 'good'; allowed: "),
        (TWO.replace("0.5", "-1"), "profiles.bad.upstream.delay: read -1.0; allowed: seconds"),
        (
            TWO.replace("0.5", ".nan"),
            "profiles.bad.upstream.delay: read nan; allowed: a finite number",
        ),
        (TWO.replace("0.5", "'1'"), "profiles.bad.upstream.delay: read '1'; allowed: a valid nu"),
        (
            TWO.replace("delay", "dely"),
            (
                "profiles.bad.upstream.dely: read an unknown key; allowed: one of delay, "
                "duplicate, jitter, loss, queue_bytes, rate, reorder (perhaps delay)"
            ),
        ),
        (
            TWO.replace("upstream", "up"),
            "profiles.bad.up: read an unknown key; allowed: one of downstream, drawn, upstream",
        ),
        (
            TWO.replace("delay: 0.5", "loss: {begin: 1, end: 2}"),
            "profiles.bad.upstream.loss.end: read 2.0; allowed: 0 to 1",
        ),
        (
            TWO.replace("delay: 0.5", "loss: {begin: 1, over: 2}"),
            "profiles.bad.upstream.loss.end: read nothing; allowed: a value",
        ),
        (
            TWO.replace("delay: 0.5", "loss: {begin: 1, end: 1, over: 2}"),
            "profiles.bad.upstream.loss.over: read an unknown key; allowed: one of begin, end, ",
        ),
        (
            TWO.replace("delay: 0.5", "loss: much"),
            "profiles.bad.upstream.loss: read 'much'; allowed: a valid number",
        ),
        (
            TWO + "until: 5",
            "until: read an unknown key; allowed: one of begin, on_off, profiles, trace",
        ),
        (
            TWO + "on_off: {good: good, bad: ugly, mean_good_seconds: 1, mean_bad_seconds: 1}",
            "on_off.bad: read 'ugly'; allowed: good, bad",
        ),
        (
            TWO + "on_off: {good: good, bad: bad, mean_good_seconds: 0, mean_bad_seconds: 1}",
            "on_off.mean_good_seconds: read 0.0; allowed: from 0.001",
        ),
        (
            TWO + "trace: {at_seconds: [2, 1], profiles: [good, bad]}",
            "trace.at_seconds: read [2.0, 1.0]; allowed: rising seconds from 0",
        ),
        (
            TWO + "trace: {at: [2, 1], profiles: [good, bad]}",
            "trace.at: read an unknown key; allowed: one of at_seconds, profiles, repeat_seconds",
        ),
        (
            TWO + "trace: {at_seconds: [0], profiles: [good]}\n"
            "on_off: {good: good, bad: bad, mean_good_seconds: 1, mean_bad_seconds: 1, sed: 1}",
            "on_off.sed: read an unknown key; allowed: one of bad, good, mean_bad_seconds",
        ),
        (
            TWO + "trace: {at_seconds: [0], profiles: [good]}\n"
            "on_off: {good: good, bad: bad, mean_good_seconds: 1, mean_bad_seconds: 1}",
            "read on_off and trace; allowed: one of them",
        ),
    ],
)
def test_a_mistake_is_told_with_file_place_and_what_is_allowed(
    tmp_path: Path, text: str, line: str
) -> None:
    """A user finds the line without a traceback; one mistake is told once."""
    file = write(tmp_path, text)
    with pytest.raises(NetemError) as told:
        read_link(file)
    assert str(told.value).startswith(f"{file}: ")
    assert line in str(told.value)


def test_every_mistake_is_told_and_none_twice(tmp_path: Path) -> None:
    """Two wrong values make two lines; a value with two forms is not told for each."""
    text = TWO.replace("delay: 0.5", "rate: fast, loss: much")
    with pytest.raises(NetemError) as told:
        read_link(write(tmp_path, text))
    assert [line.split(": ")[1] for line in str(told.value).splitlines()] == [
        "profiles.bad.upstream.rate",
        "profiles.bad.upstream.loss",
    ]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The name stands in the text."""
    with pytest.raises(NetemError, match="none-such"):
        read_link(tmp_path / "none-such")
