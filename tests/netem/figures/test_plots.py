from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colors, image

from penstock.netem.figures.canvas import (
    IMPAIRED_COLOUR,
    Canvas,
    Plot,
    begin,
    compare,
    show_seconds,
    spread,
)
from penstock.netem.figures.colours import FOCUS_COLOUR, OVER_COLOUR, find_focus, find_over, paint
from penstock.netem.figures.measures import Measures, show_bytes
from penstock.netem.figures.plots import draw, draw_distributions, draw_latencies, draw_memory
from penstock.netem.figures.size_plots import correlate, draw_memory_by_latency, draw_sizes
from penstock.netem.figures.table_rows import MemoryRow, Tables
from penstock.netem.runs.run_file import RunInfo
from penstock.netem.runs.scenario import (
    Broker,
    HostPlan,
    LinkPlan,
    Stream,
    Subscriber,
    Target,
    Topology,
)
from tests.helpers.netem_runs import INFO, SCENARIO, delivery, expected, message, whole_run


def count(path: Path, colour: str) -> int:
    """Return how many pixels of a picture have a colour."""
    pixels: Any = np.round(image.imread(path)[:, :, :3] * 255)
    wanted = np.round(np.array(colors.to_rgb(colour)) * 255)
    return int((np.abs(pixels - wanted).max(axis=2) < 2).sum())


def test_a_run_of_two_sizes_has_three_plots(tmp_path: Path) -> None:
    """Their titles say what was found, with the figures of the measures."""
    plots = draw(INFO, Measures(SCENARIO, whole_run()), tmp_path)
    assert {plot.name: plot.title for plot in plots} == {
        "latency.png": "Small messages: p90 of 200 ms with adaptive, 2.0 s with mosquitto",
        "distribution.png": "100 % of small messages at least as fast with adaptive as with "
        "mosquitto",
        "memory.png": "Memory grows by at most 2.0 MB with adaptive, 8.0 MB with mosquitto",
    }
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(plot.name for plot in plots)


def test_each_broker_is_on_each_plot_in_its_colour(tmp_path: Path) -> None:
    """So is the impaired time on those over time."""
    for plot in draw(INFO, Measures(SCENARIO, whole_run()), tmp_path):
        for colour in (FOCUS_COLOUR, OVER_COLOUR):
            assert count(tmp_path / plot.name, colour) > 500, (plot.name, colour)
        if plot.name != "distribution.png":
            assert count(tmp_path / plot.name, IMPAIRED_COLOUR) > 20_000, plot.name


def test_what_is_withheld_is_marked(tmp_path: Path) -> None:
    """A bar at the foot that is not there without it."""
    tables = whole_run()
    draw_latencies(INFO, Measures(SCENARIO, tables), tmp_path)
    with_bar = count(tmp_path / "latency.png", "#222222")
    draw_latencies(INFO, Measures(SCENARIO, dataclasses.replace(tables, withheld=[])), tmp_path)
    assert with_bar > count(tmp_path / "latency.png", "#222222") + 1000


def test_a_bad_link_of_others_is_shown_too(tmp_path: Path) -> None:
    """Where the question is whether those in focus feel it."""
    tables = whole_run()
    tables.links[:] = [row._replace(link="field-cloud") for row in tables.links]
    draw_latencies(INFO, Measures(SCENARIO, tables), tmp_path)
    assert count(tmp_path / "latency.png", IMPAIRED_COLOUR) > 20_000
    tables.links[:] = [row._replace(is_impaired=False) for row in tables.links]
    draw_latencies(INFO, Measures(SCENARIO, tables), tmp_path)
    assert count(tmp_path / "latency.png", IMPAIRED_COLOUR) < 2_000


def test_one_unit_is_shown_with_its_own_bad_times(tmp_path: Path) -> None:
    """Another link, bad all the time and with messages of its own, changes nothing but figures."""
    tables = whole_run()
    draw_latencies(INFO, Measures(SCENARIO, tables), tmp_path)
    alone = count(tmp_path / "latency.png", IMPAIRED_COLOUR)
    subscribers = {**SCENARIO.subscribers, "other": Subscriber("far", ["#"])}
    hosts = {**SCENARIO.topology.hosts, "far": HostPlan()}
    links = [*SCENARIO.topology.links, LinkPlan(("cloud", "far"), "good")]
    scenario = dataclasses.replace(
        SCENARIO, subscribers=subscribers, topology=Topology(hosts, links)
    )
    tables.expected.extend(
        row._replace(subscriber="other", group="other", unit="cloud-far")
        for row in whole_run().expected
    )
    tables.deliveries.extend(
        row._replace(subscriber="other", delivered_s=row.delivered_s + 9)
        for row in whole_run().deliveries
    )
    tables.links.extend(
        row._replace(link="cloud-far", is_impaired=True) for row in whole_run().links
    )
    plot = draw_latencies(INFO, Measures(scenario, tables), tmp_path)
    assert plot is not None
    assert plot.about.endswith("due, router-edge, seed 1; figures are of all 2 units")
    both = count(tmp_path / "latency.png", IMPAIRED_COLOUR)
    assert abs(both - alone) < alone / 10


def test_what_never_came_is_not_hidden(tmp_path: Path) -> None:
    """A distribution of which half never came ends at its half; title and plot say so."""
    tables = whole_run()
    tables.deliveries[:] = [
        row for row in tables.deliveries if row.broker == "mosquitto" or row.number % 2
    ]
    measures = Measures(SCENARIO, tables)
    plot = draw_distributions(INFO, measures, tmp_path)
    assert plot is not None
    assert plot.title.startswith("50 % of small messages")
    assert draw_latencies(INFO, measures, tmp_path) is not None


def test_a_run_in_which_nothing_came_is_drawn(tmp_path: Path) -> None:
    """A link that is dead to the end is a finding, and its crosses are on the plot."""
    measures = Measures(SCENARIO, dataclasses.replace(whole_run(), deliveries=[]))
    assert [plot.title for plot in draw(INFO, measures, tmp_path)][:2] == [
        "Small messages: p90 of ∞ with adaptive, ∞ with mosquitto",
        "0 % of small messages at least as fast with adaptive as with mosquitto",
    ]


def test_a_share_is_rounded_down(tmp_path: Path) -> None:
    """One of 2,000 slower is not 100 %."""
    tables = Tables()
    whole = whole_run()
    tables.expected.extend(whole.expected)
    for broker in SCENARIO.brokers:
        for number in range(2000):
            tables.messages.append(message(number, number / 100, broker=broker))
            late = 5.0 if (broker, number) == ("adaptive", 7) else 0.1
            row = whole.deliveries[0]._replace(
                broker=broker, number=number, delivered_s=number / 100 + late
            )
            tables.deliveries.append(row)
    plot = draw_distributions(INFO, Measures(SCENARIO, tables), tmp_path)
    assert plot == Plot(
        "distribution.png",
        "99.9 % of small messages at least as fast with adaptive as with mosquitto",
        "Share of messages delivered within a time",
    )


def test_seeds_that_are_not_shown_are_told(tmp_path: Path) -> None:
    """Over time it is the first one; distributions are of all."""
    scenario = dataclasses.replace(SCENARIO, seeds=[1, 2])
    info = dataclasses.replace(INFO, scenario=scenario)
    plots = draw(info, Measures(scenario, whole_run(info)), tmp_path)
    assert [plot.about for plot in plots] == [
        (
            "Latency of each message by when it was due, router-edge, seed 1; figures are of all 2 "
            "units"
        ),
        "Share of messages delivered within a time, all 2 seeds together",
        (
            "Resident set of the broker beyond what it was before the traffic, seed 1; the title "
            "has the mean of all 2 seeds"
        ),
    ]


def test_without_data_there_is_no_plot(tmp_path: Path) -> None:
    """Nothing is drawn, and nothing fails."""
    measures = Measures(SCENARIO, Tables())
    assert draw(INFO, measures, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    only_memory = Measures(SCENARIO, dataclasses.replace(Tables(), memory=whole_run().memory))
    assert draw_memory(INFO, only_memory, tmp_path) is not None


def test_labels_do_not_touch_and_keep_their_order() -> None:
    """The lower ones stay where they belong, what is above them is pushed up."""
    assert spread([5.0, 1.0, 1.5], 1.0, 0.0) == [5.0, 1.0, 2.0]
    assert spread([-3.0, -2.0], 1.0, 0.5) == [0.5, 1.5]
    assert spread([], 1.0, 0.0) == []


def test_sizes_and_times_are_short_words() -> None:
    """As on axes and in keys."""
    assert [show_bytes(size) for size in (100, 1000, 300_000, 1e6)] == [
        "100 B",
        "1 kB",
        "300 kB",
        "1 MB",
    ]
    assert [show_seconds(each) for each in (0.001, 0.1, 1, 10)] == ["1 ms", "100 ms", "1 s", "10 s"]
    assert begin("small q1-1MB") == "Small q1-1MB"
    assert begin("q1-1MB messages") == "q1-1MB messages"


def test_a_title_names_the_figure_of_both() -> None:
    """Whichever is better."""
    measures = Measures(SCENARIO, whole_run())
    assert compare(measures, "small max") == "200 ms with adaptive, 2.0 s with mosquitto"


def test_a_long_title_takes_room_from_what_is_below(tmp_path: Path) -> None:
    """Nothing is drawn over it, and the picture is a slide wide."""
    short, long = (Canvas(INFO, "word " * count, "about") for count in (3, 30))
    assert long.top < short.top
    short.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[16:20] == (1536).to_bytes(4, "big")


@pytest.mark.parametrize("commit", ["abc1234", None])
def test_the_foot_says_where_it_is_from(commit: str | None) -> None:
    """Command, length, seeds, date, commit where there is one, machine."""
    canvas = Canvas(dataclasses.replace(INFO, commit=commit), "title", "about")
    foot = canvas.figure.texts[-1].get_text()
    assert foot.startswith("penstock netem run made-up, full length, seed 1")
    assert ("commit abc1234" in foot) is (commit is not None)
    assert "2026-01-02" in foot


def test_the_focus_is_the_broker_of_the_first_target() -> None:
    """Without targets it is Penstock; it is compared with mosquitto before others."""
    brokers = {name: Broker("penstock") for name in ("none", "adaptive")}
    brokers |= {"amqtt": Broker("amqtt"), "mosquitto": Broker("mosquitto")}
    target = Target("lost", "adaptive", at_most=0)
    scenario = dataclasses.replace(SCENARIO, brokers=brokers, targets=[target])
    assert (find_focus(scenario), find_over(scenario)) == ("adaptive", "mosquitto")
    assert find_focus(dataclasses.replace(scenario, targets=[])) == "none"
    strangers = {name: brokers[name] for name in ("none", "adaptive", "amqtt")}
    assert find_over(dataclasses.replace(scenario, brokers=strangers)) == "amqtt"
    alone = dataclasses.replace(scenario, brokers={"adaptive": brokers["adaptive"]})
    assert find_over(alone) is None
    assert list(paint(alone)) == ["adaptive"]


def test_brokers_have_colours_of_their_own() -> None:
    """Blue for the focus, vermilion for what it is compared with, these two first."""
    names = ("none", "mosquitto", "adaptive", "historic", "conservative", "probabilistic")
    brokers = {n: Broker("mosquitto" if n == "mosquitto" else "penstock") for n in names}
    colours = paint(dataclasses.replace(SCENARIO, brokers=brokers))
    assert list(colours)[:3] == ["adaptive", "mosquitto", "none"]
    assert set(colours) == set(names)
    assert colours["adaptive"] == FOCUS_COLOUR
    assert colours["mosquitto"] == OVER_COLOUR
    assert len(set(colours.values())) == len(names)


SIZES = {"100B": 100, "1KB": 1000, "100KB": 100_000, "1MB": 1_000_000}


def many_sizes(*, is_lost: bool = False) -> tuple[RunInfo, Measures]:
    """Return a run of four sizes at QoS 0 and 1: 100 ms each, 1 MB a second."""
    traffic = {
        f"q{qos}-{name}": Stream(f"q{qos}/{name}", size, 1.0, qos=qos)
        for qos in (1, 0)
        for name, size in SIZES.items()
    }
    scenario = dataclasses.replace(SCENARIO, traffic=traffic)
    tables = Tables()
    for broker in scenario.brokers:
        for stream, plan in traffic.items():
            tables.expected.append(expected(broker=broker, stream=stream, qos=plan.qos))
            for number in range(5):
                row = message(number, float(number), broker=broker)
                tables.messages.append(
                    row._replace(
                        stream=stream,
                        topic=plan.topic,
                        payload_bytes=plan.payload_bytes,
                        qos=plan.qos,
                    )
                )
                latency = 1.0 if plan.payload_bytes == 1_000_000 else 0.1
                if not (is_lost and plan.qos == 0):
                    at = number + latency
                    tables.deliveries.append(delivery(number, at, broker=broker, stream=stream))
        tables.memory.extend(
            MemoryRow(broker, 1, at, rss) for at, rss in ((-1.0, 10**7), (1.0, 3 * 10**7))
        )
    return dataclasses.replace(INFO, scenario=scenario), Measures(scenario, tables)


def test_a_run_of_many_sizes_has_both_plots(tmp_path: Path) -> None:
    """Titles name the largest size and the memory of both."""
    info, measures = many_sizes()
    sizes = draw_sizes(info, measures, tmp_path)
    memory = draw_memory_by_latency(info, measures, tmp_path)
    assert sizes is not None
    assert memory is not None
    assert sizes.title == "1 MB at QoS 0: p50 of 1.0 s with adaptive, 1.0 s with mosquitto"
    assert memory.title == "Late messages and memory: 20.0 MB with adaptive, 20.0 MB with mosquitto"
    for plot in (sizes, memory):
        assert (tmp_path / plot.name).stat().st_size > 10_000


def test_a_size_of_which_nothing_came_is_drawn_as_that(tmp_path: Path) -> None:
    """It has no quantile, and the plot is there all the same."""
    info, measures = many_sizes(is_lost=True)
    sizes = draw_sizes(info, measures, tmp_path)
    assert sizes is not None
    assert sizes.title == "1 MB at QoS 0: p50 of ∞ with adaptive, ∞ with mosquitto"


def test_memory_that_goes_with_latency_is_correlated() -> None:
    """By ranks: any growth that is larger where latency is; the other way round it is -1."""
    latencies = [0.5, 1.0, 4.0, 2.0, 8.0]
    messages = [message(number, 20.0 * number, stream="large") for number in range(5)]
    tables = Tables(
        messages=messages,
        deliveries=[
            delivery(number, 20.0 * number + latency, stream="large")
            for number, latency in enumerate(latencies)
        ],
        expected=[expected(stream="large")],
        memory=[MemoryRow("adaptive", 1, -1.0, 0)],
    )
    for row, latency in zip(messages, latencies, strict=True):
        for at in (row.due_s, row.due_s + 9):
            tables.memory.append(MemoryRow("adaptive", 1, at, int(latency**3 * 1000)))
    measures = Measures(SCENARIO, tables)
    assert correlate(measures, "adaptive", 1, 1_000_000) == pytest.approx(1)
    tables.memory[:] = [row._replace(rss_bytes=-row.rss_bytes) for row in tables.memory]
    assert correlate(measures, "adaptive", 1, 1_000_000) == pytest.approx(-1)
    tables.memory[:] = [row._replace(rss_bytes=7) for row in tables.memory]
    assert math.isnan(correlate(measures, "adaptive", 1, 1_000_000))
    assert math.isnan(correlate(measures, "adaptive", 1, 100))


def test_two_sizes_are_too_few(tmp_path: Path) -> None:
    """There is nothing to compare by size."""
    measures = Measures(SCENARIO, Tables(expected=[expected(), expected(stream="large")]))
    assert draw_sizes(INFO, measures, tmp_path) is None
    assert draw_memory_by_latency(INFO, measures, tmp_path) is None
