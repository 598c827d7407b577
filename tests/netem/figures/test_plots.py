"""Plots: there where data is, and what is shown is on them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colors, image

from penstock.netem.figures.canvas import IMPAIRED_COLOUR, Plot
from penstock.netem.figures.colours import FOCUS_COLOUR, OVER_COLOUR
from penstock.netem.figures.measures import Measures
from penstock.netem.figures.plots import draw, draw_distributions, draw_latencies, draw_memory
from penstock.netem.figures.records import Tables
from penstock.netem.runs.scenario import HostPlan, LinkPlan, Subscriber, Topology
from tests.helpers.netem_runs import INFO, SCENARIO, message, whole_run


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
