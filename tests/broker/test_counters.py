from __future__ import annotations

from penstock.broker.counters import Counters, count
from tests.helpers.virtual import VirtualBroker


def test_counting_by_name_starts_at_one() -> None:
    """A name that was not seen before is counted as well as one that was."""
    by_name: dict[str, int] = {}
    for name in ("a", "b", "a"):
        count(by_name, name)
    assert by_name == {"a": 2, "b": 1}


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
