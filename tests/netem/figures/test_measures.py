from __future__ import annotations

import dataclasses
import math

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.figures.estimates import Standing
from penstock.netem.figures.measures import Measures, quantile, show
from penstock.netem.figures.outcomes import Promises, join, keep_account
from penstock.netem.figures.table_rows import MemoryRow, PacketsRow, Tables
from penstock.netem.runs.scenario import Target
from tests.helpers.netem_runs import (
    INFO,
    SCENARIO,
    delivery,
    expected,
    message,
    whole_run,
    with_scenario,
)


def of_latencies(ours: list[float | None], theirs: list[float | None]) -> Measures:
    """Return the run in which small messages took so long; None never came."""
    tables = Tables()
    for broker, latencies in (("adaptive", ours), ("mosquitto", theirs)):
        tables.expected.append(expected(broker=broker))
        for number, latency in enumerate(latencies):
            tables.messages.append(message(number, number * 1.0, broker=broker))
            if latency is not None:
                tables.deliveries.append(delivery(number, number + latency, broker=broker))
    return Measures(SCENARIO, tables)


def test_quantiles_are_latencies_that_were_measured() -> None:
    """The fifth, ninth and tenth of ten; the mean is of all."""
    measures = of_latencies([0.1 * (10 - each) for each in range(10)], [])
    figures = {name: measures.figure(f"small {name}", "adaptive") for name in ("p50", "p90", "p99")}
    assert figures == pytest.approx({"p50": 0.5, "p90": 0.9, "p99": 1.0})
    assert measures.figure("small mean", "adaptive") == pytest.approx(0.55)
    assert measures.figure("small max", "adaptive") == pytest.approx(1.0)


def test_bytes_on_impaired_links_count_in_both_directions() -> None:
    """The mean of seeds; none is known of a seed without its rows."""
    tables = Tables(
        packets=[
            PacketsRow("adaptive", seed, link, direction, 1, 1, 0, 0, 0, carried_bytes)
            for seed, link, direction, carried_bytes in (
                (1, "router-edge", "upstream", 1_000),
                (1, "router-edge", "downstream", 5_000),
                (1, "cloud-router", "downstream", 9_000),
                (2, "router-edge", "downstream", 4_000),
            )
        ]
    )
    measures = Measures(dataclasses.replace(SCENARIO, seeds=[1, 2]), tables)
    assert measures.figure("wan_bytes", "adaptive") == (6_000 + 4_000) / 2
    assert math.isnan(measures.figure("wan_bytes", "mosquitto"))
    assert show("wan_bytes", 12_340_000.0) == "12.3 MB"


def test_what_never_came_has_the_longest_latency() -> None:
    """One of ten lost: p90 is the slowest that came, p99 and mean are infinite."""
    measures = of_latencies([0.1 * each for each in range(9)] + [None], [])
    assert measures.figure("small p90", "adaptive") == pytest.approx(0.8)
    for name in ("p99", "mean", "max"):
        assert measures.figure(f"small {name}", "adaptive") == math.inf
    assert measures.figure("lost", "adaptive") == 1


def test_seeds_count_together() -> None:
    """Latencies of two runs are one set, counts add up, memory is the mean."""
    scenario = dataclasses.replace(SCENARIO, seeds=[1, 2])
    tables = Tables(
        messages=[message(0, 0.0), message(0, 0.0, seed=2), message(1, 1.0, seed=2)],
        deliveries=[delivery(0, 1.0), delivery(0, 3.0, seed=2)],
        expected=[expected(), expected(seed=2)],
        memory=[
            MemoryRow("adaptive", seed, at, rss)
            for seed, at, rss in (
                (1, -2.0, 900),
                (1, -1.0, 1000),
                (1, 1.0, 5000),
                (1, 2.0, 1200),
                (2, -1.0, 1000),
                (2, 1.0, 3000),
            )
        ],
    )
    measures = Measures(scenario, tables)
    assert list(measures.latencies("adaptive", "small")) == [1, 3, math.inf]
    assert measures.figure("small p50", "adaptive") == 3
    assert measures.figure("lost", "adaptive") == 1
    assert measures.figure("memory", "adaptive") == (4000 + 2000) / 2
    assert measures.figure("memory_left", "adaptive") == (200 + 2000) / 2


def of_units(ours: list[float], theirs: list[float]) -> Measures:
    """Return a run of a seed for each value: ten small messages that took so long."""
    seeds = list(range(len(ours)))
    tables = Tables()
    for broker, latencies in (("adaptive", ours), ("mosquitto", theirs)):
        for seed, latency in zip(seeds, latencies, strict=True):
            tables.expected.append(expected(broker=broker, seed=seed))
            for number in range(10):
                tables.messages.append(message(number, float(number), broker=broker, seed=seed))
                row = delivery(number, number + latency, broker=broker, seed=seed)
                tables.deliveries.append(row)
    return Measures(dataclasses.replace(SCENARIO, seeds=seeds), tables)


def test_links_of_a_seed_are_units_of_their_own() -> None:
    """Two seeds with two links make four units, though two subscribers share a link."""
    scenario = dataclasses.replace(SCENARIO, seeds=[1, 2])
    tables = Tables()
    for seed in (1, 2):
        for place, link in enumerate(("cloud-a", "cloud-b", "cloud-b"), start=1):
            row = expected(seed=seed)._replace(subscriber=f"sub-{place}", unit=link)
            tables.expected.append(row)
            arrived = delivery(0, float(place), seed=seed)._replace(subscriber=f"sub-{place}")
            tables.deliveries.append(arrived)
        tables.messages.append(message(0, 0.0, seed=seed))
    measures = Measures(scenario, tables)
    assert measures.units("small") == [
        ("cloud-a", 1),
        ("cloud-b", 1),
        ("cloud-a", 2),
        ("cloud-b", 2),
    ]
    assert measures.samples("adaptive", "small") == [[1.0], [2.0, 3.0], [1.0], [2.0, 3.0]]
    assert measures.estimate("small mean", "adaptive").n_units == 4
    assert [each.subscriber for each in measures.in_unit("adaptive", ("cloud-b", 2))] == [
        "sub-2",
        "sub-3",
    ]


def test_ratios_are_paired_by_unit() -> None:
    """Units differ by a factor of ten, both brokers alike: the ratio has no spread."""
    measures = of_units(
        [0.1 * each for each in range(1, 11)], [1.0 * each for each in range(1, 11)]
    )
    alone = measures.estimate("small mean", "mosquitto")
    assert alone.value == pytest.approx(5.5)
    assert alone.low < 4.5
    assert alone.high > 6.5
    over = measures.ratio("small mean", "adaptive", "mosquitto")
    assert over[:3] == pytest.approx((0.1, 0.1, 0.1))
    assert over.n_units == 10


def test_an_interval_that_straddles_the_bound_shows_nothing() -> None:
    """Half of the units are better than the bound and half are worse; bounds beyond are clear."""
    measures = of_units([0.4, 0.6] * 6, [1.0] * 12)
    for bound, standing in ((0.3, Standing.MISSED), (0.5, Standing.NOT_SHOWN), (0.7, Standing.MET)):
        target = Target("small mean", "adaptive", at_most=bound)
        assert measures.judge(target, "full").standing == standing
    assert measures.judge(Target("lost", "adaptive", at_most=0), "full").standing == Standing.MET


def test_few_units_show_nothing() -> None:
    """Five have no interval, whatever the figure is."""
    measures = of_units([0.1] * 5, [0.1] * 5)
    verdict = measures.judge(Target("small mean", "adaptive", at_most=9), "full")
    assert verdict.line == "not shown: small mean: adaptive 100 ms, 5 units (at most 9.0 s)"


def test_messages_are_compared_one_by_one() -> None:
    """Faster, 4 ms slower, 6 ms slower, theirs lost, ours lost, both lost: 3 of 6 are as fast."""
    measures = of_latencies(
        [0.1, 0.104, 0.106, 0.5, None, None], [0.2, 0.100, 0.100, None, 0.5, None]
    )
    share = measures.figure("small share_as_fast", "adaptive", over="mosquitto")
    assert share == 0.5


def test_messages_of_one_broker_alone_are_not_compared() -> None:
    """And no pair at all is no share."""
    measures = of_latencies([0.1, 0.2], [0.05])
    assert measures.figure("small share_as_fast", "adaptive", over="mosquitto") == 0
    nothing = of_latencies([0.1], [])
    assert math.isnan(nothing.figure("small share_as_fast", "adaptive", over="mosquitto"))


def test_withholding_of_a_whole_run() -> None:
    """From 11 to 22 s, with the link bad from 10 to 20 s: nine tenths of it, none outside."""
    measures = Measures(SCENARIO, whole_run())
    assert measures.figure("withheld_outside", "adaptive") == 0
    assert measures.figure("withheld_share", "adaptive") == pytest.approx(0.9)
    assert measures.figure("withheld_share", "mosquitto") == 0
    assert measures.figure("memory", "mosquitto") == 8_000_000


@pytest.mark.parametrize(
    "figure",
    [
        "small p50",
        "small mean",
        "lost",
        "reordered",
        "memory",
        "withheld_outside",
        "withheld_share",
    ],
)
def test_missing_data_is_no_number_and_meets_nothing(figure: str) -> None:
    """Neither a bound from above nor one from below, nor a ratio."""
    measures = Measures(SCENARIO, Tables())
    assert math.isnan(measures.figure(figure, "adaptive"))
    for target in (
        Target(figure, "adaptive", at_most=1e9),
        Target(figure, "adaptive", at_least=0),
        Target(figure, "adaptive", over="mosquitto", at_most=1e9),
    ):
        assert measures.judge(target, "full").standing == Standing.MISSED


def test_a_seed_without_data_makes_the_figure_unknown() -> None:
    """A run that failed is not left out of the mean."""
    info = with_scenario(INFO, seeds=[1, 2])
    measures = Measures(info.scenario, whole_run(INFO))
    for figure in ("small p50", "lost", "memory", "withheld_outside"):
        assert math.isnan(measures.figure(figure, "adaptive"))
        assert not math.isnan(Measures(SCENARIO, whole_run()).figure(figure, "adaptive"))


def test_a_ratio_is_held_against_its_bound() -> None:
    """p50 of 0.1 s against 2 s; the line names both, the interval and the units."""
    measures = of_units([0.1] * 6, [2.0] * 6)
    met = measures.judge(Target("small p50", "adaptive", over="mosquitto", at_most=0.5), "full")
    assert met.standing == Standing.MET
    assert met.line == (
        "met: small p50: adaptive 100 ms, mosquitto 2.0 s: 0.05 (0.05 to 0.05) of it, 6 units"
        " (at most 0.5)"
    )
    missed = Target("small p50", "adaptive", over="mosquitto", at_most=0.02)
    assert measures.judge(missed, "full").is_missed


def test_two_infinite_means_have_no_ratio() -> None:
    """Neither is better, so nothing is shown; one that is infinite alone misses its bound."""
    target = Target("small mean", "adaptive", over="mosquitto", at_most=1.0)
    verdict = of_latencies([None], [None]).judge(target, "full")
    assert verdict.word == "not shown"
    assert not verdict.is_missed
    assert "no ratio" in verdict.line
    assert of_units([math.inf] * 6, [2.0] * 6).judge(target, "full").is_missed


def test_a_share_is_compared_and_not_divided() -> None:
    """Its bound is in per cent of messages."""
    measures = of_units([0.1] * 6, [2.0] * 6)
    verdict = measures.judge(
        Target("small share_as_fast", "adaptive", over="mosquitto", at_least=0.95), "full"
    )
    assert verdict.line == (
        "met: small share_as_fast: adaptive 100.0 % (100.0 % to 100.0 %) against mosquitto,"
        " 6 units (at least 95.0 %)"
    )


def test_a_short_run_does_not_judge_timings() -> None:
    """Its few seconds say nothing of them; counts are judged in both."""
    measures = of_latencies([0.05], [2.0])
    timing = Target("small p50", "adaptive", at_most=0.01, is_timing=True)
    assert not measures.judge(timing, "short").is_judged
    assert measures.judge(timing, "full").is_judged
    assert measures.judge(Target("lost", "adaptive", at_most=0), "short").is_judged


def test_unknown_figures_and_brokers_are_named_with_what_is_allowed() -> None:
    """A mistake in a scenario must not look like missing data."""
    measures = of_latencies([0.05], [2.0])
    with pytest.raises(NetemError, match=r"'tiny p50'; allowed: small p50, small p90, .* memory"):
        measures.figure("tiny p50", "adaptive")
    with pytest.raises(NetemError, match=r"'small p95'"):
        measures.figure("small p95", "adaptive")
    with pytest.raises(NetemError, match=r"broker 'rabbit'; allowed: adaptive, mosquitto"):
        measures.judge(Target("lost", "rabbit", at_most=0), "full")
    with pytest.raises(NetemError, match=r"no broker to compare with; allowed: over"):
        measures.figure("small share_as_fast", "adaptive")


def test_every_name_has_a_figure() -> None:
    """What an error offers, and a target may name, can be had."""
    tables = whole_run()
    tables.packets.append(PacketsRow("adaptive", 1, "router-edge", "upstream", 1, 1, 0, 0, 0, 100))
    measures = Measures(SCENARIO, tables)
    for name in SCENARIO.figures():
        assert not math.isnan(measures.figure(name, "adaptive", over="mosquitto")), name


def test_figures_are_shown_with_their_unit() -> None:
    """Short latencies in ms; what is not known is a dash."""
    assert show("small p50", 0.0449) == "45 ms"
    assert show("small p50", 12.34) == "12.3 s"
    assert show("large mean", math.inf) == "∞"
    assert show("memory", 12_340_000) == "12.3 MB"
    assert show("lost", 3.0) == "3"
    assert show("small share_as_fast", 0.57) == "57.0 %"
    assert show("small share_as_fast", 0.9999) == "99.9 %"
    assert show("small share_as_fast", 1.0) == "100.0 %"
    assert show("withheld_outside", 1.25) == "1.2 s"
    assert show("memory", math.nan) == "-"


def test_no_latencies_have_no_quantile() -> None:
    """It is no number, not zero."""
    assert math.isnan(quantile(Measures(SCENARIO, Tables()).latencies("adaptive", "small"), 0.5))


def account(tables: Tables) -> Promises:
    """Return how promises were kept in the one run there is."""
    (outcomes,) = join(tables).values()
    return keep_account(outcomes)


def test_latency_is_from_due_to_first_delivery() -> None:
    """What the publisher waited counts; what comes again does not."""
    tables = Tables(
        messages=[message(0, 1.0)],
        deliveries=[delivery(0, 1.75), delivery(0, 9.0, is_duplicate=True)],
        expected=[expected()],
    )
    (outcome,) = join(tables)["adaptive", 1]
    assert outcome.latency == 0.75
    assert outcome.copies == 2


def test_what_never_came_is_lost_at_qos_1_and_takes_for_ever() -> None:
    """At QoS 0 it is not lost, as nothing was promised, but counted."""
    tables = Tables(
        messages=[message(0, 1.0), message(1, 2.0), message(0, 1.0, stream="large")],
        deliveries=[delivery(1, 2.5)],
        expected=[expected(), expected(stream="large", qos=0)],
    )
    outcomes = join(tables)["adaptive", 1]
    assert [each.latency for each in outcomes] == [math.inf, 0.5, math.inf]
    assert account(tables) == Promises(1, 1, 0, 0, 0)


def test_a_redelivery_after_its_successor_is_no_reordering() -> None:
    """1 2 3 2 3 4, as after a cut connection, is in order and repeats two."""
    came = [(0, 1.0), (1, 1.1), (2, 1.2), (1, 2.0), (2, 2.1), (3, 2.2)]
    tables = Tables(
        messages=[message(number, 0.5) for number in range(4)],
        deliveries=[delivery(number, at) for number, at in came],
        expected=[expected()],
    )
    assert account(tables) == Promises(0, 0, 0, 0, 2)


def test_each_message_that_comes_first_after_a_later_one_is_reordered() -> None:
    """0 3 1 2: two have been passed, and streams do not count against each other."""
    tables = Tables(
        messages=[
            *(message(number, 0.5) for number in range(4)),
            *(message(number, 0.5, stream="large") for number in range(2)),
        ],
        deliveries=[
            *(delivery(number, 1 + place / 10) for place, number in enumerate((0, 3, 1, 2))),
            *(delivery(number, 2.0 + number, stream="large") for number in range(2)),
        ],
        expected=[expected(), expected(stream="large")],
    )
    assert account(tables) == Promises(0, 0, 2, 0, 0)


def test_messages_that_come_at_the_same_moment_are_in_order() -> None:
    """One read may bring several."""
    tables = Tables(
        messages=[message(0, 0.5), message(1, 0.5)],
        deliveries=[delivery(1, 1.0), delivery(0, 1.0)],
        expected=[expected()],
    )
    assert account(tables).reordered == 0


def test_a_second_copy_at_qos_2_is_a_duplicate() -> None:
    """Exactly once is promised there; at QoS 1 it is only repeated."""
    tables = Tables(
        messages=[message(0, 0.5)],
        deliveries=[delivery(0, 1.0, qos=2), delivery(0, 1.5, qos=2), delivery(0, 1.6, qos=2)],
        expected=[expected(qos=2)],
    )
    assert account(tables) == Promises(0, 0, 0, 2, 0)


def test_runs_do_not_mix() -> None:
    """A message with the same number of another broker or seed is another one."""
    tables = Tables(
        messages=[message(0, 0.5), message(0, 0.5, seed=2), message(0, 0.5, broker="mosquitto")],
        deliveries=[delivery(0, 1.0), delivery(0, 2.0, seed=2)],
        expected=[expected(), expected(seed=2), expected(broker="mosquitto")],
    )
    latencies = {run: [each.latency for each in of_it] for run, of_it in join(tables).items()}
    assert latencies == {
        ("adaptive", 1): [0.5],
        ("adaptive", 2): [1.5],
        ("mosquitto", 1): [math.inf],
    }
