from __future__ import annotations

import signal
from pathlib import Path

import pytest

from script.demo_program import __main__ as program
from script.demo_program.books import Ledger, Percentiles
from script.demo_program.report import (
    TWO_LANES,
    WITHHOLDING,
    WITHOUT,
    Result,
    SideResult,
    figure_tables,
    ratio_to_without,
    too_slow,
)


def side(name: str, p90: float | None) -> SideResult:
    """Return what came out of a broker, with the p90 of small messages on the bad link."""
    small = None if p90 is None else Percentiles(714, p90 / 2, p90, 1.1 * p90)
    pictures = Percentiles(10, 1.4, 8.7, 9.6)
    return SideResult(
        name=name,
        sent=(1_768, 10),
        delivered=(1_778, 1_778),
        withheld=5 if name == WITHHOLDING else 0,
        released=0,
        ledger=Ledger(1_778, 1_778, 0, 0, 0, 0),
        sinks={},
        in_bad=small,
        whole=small,
        pictures=pictures,
        latencies=[],
    )


def sides(
    without: float | None, withholding: float | None, lanes: float | None
) -> list[SideResult]:
    """Return what came out of the three brokers, by that p90 in seconds."""
    return [side(WITHOUT, without), side(WITHHOLDING, withholding), side(TWO_LANES, lanes)]


def test_half_the_latency_without_is_enough() -> None:
    """The bound is 0.5 of p90 for small messages on the bad link, for either way."""
    assert too_slow(sides(8.0, 1.0, 4.0)) == []


def test_each_way_that_does_not_protect_small_messages_is_told_with_its_figures() -> None:
    """One fails by itself, whatever the other does."""
    (told,) = too_slow(sides(8.0, 4.1, 1.0))
    assert told.startswith(
        "small messages on the bad link, p90: withholding 4.10 s, without 8.00 s"
    )
    assert told.endswith(": 0.51 of it; at most 0.5")
    (told,) = too_slow(sides(8.0, 1.0, 9.0))
    assert "two lanes 9.00 s, without 8.00 s: 1.12 of it" in told


@pytest.mark.parametrize(("withholding", "status"), [(1.0, 0), (7.0, 1)])
def test_a_demo_that_protects_nobody_ends_with_status_1(
    withholding: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the figures, though nothing was lost."""
    found = sides(8.0, withholding, 1.0)
    result = Result(found, 10, None, None, (1.0, 2.0), [], [], too_slow(found), 3.0)
    monkeypatch.setattr(program, "run", lambda *_: (result, None))
    monkeypatch.setattr(program, "commands", lambda _places: [])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert program.main(["--output", str(tmp_path)]) == status
    finally:
        signal.signal(signal.SIGTERM, handler)
    told = capsys.readouterr().out
    assert ("NOT PROTECTED: small messages on the bad link, p90: withholding" in told) == bool(
        status
    )
    assert ("Nothing was lost. Small messages on the bad link" in told) == (not status)


@pytest.mark.parametrize(
    ("p90s", "told"),
    [
        ((8.0, None, 1.0), ["withholding nothing arrived, without 8.00 s"]),
        (
            (None, 1.0, 1.0),
            ["withholding 1.00 s, without nothing", "two lanes 1.00 s, without nothing"],
        ),
    ],
)
def test_where_nothing_arrived_nothing_is_shown(
    p90s: tuple[float | None, ...], told: list[str]
) -> None:
    """A comparison that could not be made is a failure, not a success."""
    found = too_slow(sides(*p90s))
    assert len(found) == len(told)
    assert all(part in line for line, part in zip(found, told, strict=True))


def test_a_ratio_is_that_of_p90() -> None:
    """It is over the broker without withholding in the same run."""
    found = sides(8.0, 1.0, 2.0)
    assert [ratio_to_without(one, found) for one in found] == [1.0, 0.125, 0.25]


def test_pages_get_each_side_with_its_ratio() -> None:
    """A table of small messages and one of pictures, each with three rows."""
    tables = figure_tables(sides(8.0, 1.0, 2.0), "bbr")
    assert tables["small"].columns[0] == "small messages, link bad, bbr"
    assert tables["small"].rows[1] == ["withholding", "714", "0.50 s", "1.00 s", "1.10 s", "0.12"]
    assert [row[0] for row in tables["pictures"].rows] == [WITHOUT, WITHHOLDING, TWO_LANES]
    assert [row[-1] for row in tables["pictures"].rows] == ["0", "5", "0"]
