from __future__ import annotations

import dataclasses

from penstock.netem.figures.measures import Measures
from penstock.netem.figures.sections import Section, sections
from penstock.netem.figures.table_rows import PacketsRow, RunRow, Tables
from penstock.netem.runs.run_file import RunInfo
from penstock.netem.runs.scenario import Broker, Edges, Subscriber, Target
from tests.helpers.netem_runs import INFO, SCENARIO, whole_run, with_scenario


def of_run(info: RunInfo, tables: Tables) -> dict[str, Section]:
    """Return the sections of a run by their names."""
    return {each.name: each for each in sections(info, Measures(info.scenario, tables))}


def test_a_section_is_markdown_with_words_at_the_left() -> None:
    """Numbers at the right."""
    section = Section("x", "Heading", ["a", "b", "c"], [["x", "y", "1"]], words=2)
    assert str(section) == ("## Heading\n\n| a | b | c |\n| --- | --- | ---: |\n| x | y | 1 |\n")


def test_other_subscribers_are_shown_apart() -> None:
    """Each group for itself; what is in focus is not among them."""
    tables = whole_run()
    tables.expected.extend(
        row._replace(subscriber="other-2", group="other", is_focus=False)
        for row in whole_run().expected
        if row.stream == "small" and row.broker == "adaptive"
    )
    tables.deliveries.append(tables.deliveries[0]._replace(subscriber="other-2", delivered_s=3.0))
    others = {**SCENARIO.subscribers, "other": Subscriber("field", ["small/#"], count=2)}
    found = of_run(with_scenario(subscribers=others), tables)
    assert found["others latency"].rows == [
        ["other", "small", "adaptive", "∞", "∞", "∞", "∞", "30", "29", "1"]
    ]
    assert "others latency" not in of_run(INFO, whole_run())


def test_what_links_carried_is_told_where_sites_have_brokers() -> None:
    """Beside what the same links carried without them."""
    brokers = {**SCENARIO.brokers, "adaptive": Broker("penstock", edges=Edges(["edge"]))}
    tables = whole_run()
    for broker, carried_bytes in (("adaptive", 3_000_000), ("mosquitto", 12_000_000)):
        tables.packets.append(
            PacketsRow(broker, 1, "router-edge", "downstream", 1, 1, 0, 0, 0, carried_bytes)
        )
    section = of_run(with_scenario(brokers=brokers), tables)["bytes"]
    assert section.heading == "Bytes on router-edge, both ways"
    assert section.rows == [["adaptive", "3.0 MB", "0.25", "1"], ["mosquitto", "12.0 MB", "", "1"]]
    assert "bytes" not in of_run(INFO, tables)


def test_what_the_harness_did_is_told_by_broker() -> None:
    """Packets that it dropped and delivered late are added up over runs; the worst counts."""
    info = with_scenario(seeds=[1, 2])
    tables = whole_run(info)
    tables.runs.append(RunRow("adaptive", 1, 1, 5, 600, 20, 0.031))
    tables.runs.append(RunRow("adaptive", 2, 1, 0, 400, 0, 0.002))
    assert of_run(info, tables)["harness"].rows == [["adaptive", "5", "20 (2.0 %)", "31 ms", "2"]]


def test_brokers_of_different_rounds_are_not_compared() -> None:
    """Their machine was not the same at both times."""
    found = of_run(with_scenario(side_by_side=1), whole_run())
    assert "small latency" in found
    assert "small over mosquitto" not in found


def test_each_reference_of_a_target_has_its_ratios() -> None:
    """Beside mosquitto: here its own over the policy's."""
    targets = [*SCENARIO.targets, Target("large mean", "mosquitto", over="adaptive", at_most=9)]
    found = of_run(with_scenario(targets=targets), whole_run())
    assert found["small over mosquitto"].rows[0][:3] == ["adaptive", "1.00", "0.10"]
    assert found["small over adaptive"].rows[0][:3] == ["mosquitto", "1.00", "10.00"]


def test_nothing_known_has_no_section_of_latencies() -> None:
    """Promises and memory say for each broker that nothing is known."""
    found = of_run(dataclasses.replace(INFO, processor=[]), Tables())
    assert list(found) == ["promises", "memory"]
    assert found["promises"].rows[0] == ["adaptive", "0", "-", "-", "-", "-", "-"]
