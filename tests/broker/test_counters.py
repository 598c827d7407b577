from __future__ import annotations

from penstock.broker.counters import Counters, Histogram, by_name, count
from penstock.broker.counters import figures as figures_of
from tests.helpers.virtual import VirtualBroker


def test_counting_by_name_starts_at_one() -> None:
    """A name that was not seen before is counted as well as one that was."""
    counts: dict[str, int] = {}
    for name in ("a", "b", "a"):
        count(counts, name)
    assert counts == {"a": 2, "b": 1}


def test_counters_have_their_reasons_below_their_names() -> None:
    """Reason codes as MQTT writes them; no name makes a level of its own."""
    counters = Counters(bytes_sent=3, faults={"b/c": 2, "a": 1}, peer_errors={0x82: 4})
    figures = by_name(counters)
    assert figures["bytes_sent"] == 3
    assert [(name, n) for name, n in figures.items() if "/" in name] == [
        ("peer_errors/0x82", 4),
        ("faults/a", 1),
        ("faults/b.c", 2),
    ]


def test_a_histogram_counts_what_is_at_most_its_bounds() -> None:
    """Prometheus' buckets: each holds the smaller ones, and a value on a bound is not above it."""
    histogram = Histogram((0.5, 1.0))
    for value in (0.1, 0.5, 0.7, 3.0):
        histogram.observe(value)
    assert figures_of(histogram) == {
        "buckets": {"0.5": 2, "1": 3, "+Inf": 4},
        "sum": 4.3,
        "count": 4,
    }


def test_every_counter_starts_at_nothing() -> None:
    """A dashboard that takes differences needs a start."""
    counters = Counters()
    assert all(not getattr(counters, name) for name in Counters.__slots__)


def test_connected_clients_go_up_and_down_and_connections_only_up() -> None:
    """The one is a gauge, the other a total."""
    broker = VirtualBroker()
    broker.connect("a").lose()
    broker.connect("b")
    broker.connect("b")
    counters = broker.core.counters
    assert (counters.clients_connected, counters.connections_total) == (1, 3)
