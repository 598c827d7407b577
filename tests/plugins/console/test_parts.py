from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from penstock.broker.counters import Histogram, Metric, Sample
from penstock.broker.errors import PenstockError
from penstock.plugins.console.exposition import metric_as_json
from penstock.plugins.console.parts import Parts
from penstock.plugins.web.nodes import Nodes


class Workers:
    """Further processes of a machine, as far as sums of metrics need them.

    Attributes:
        answers: by node.
    """

    node = "m-1"
    workers = ("m-2", "m-3")

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    async def ask(self, nodes: Iterable[str], part: str) -> dict[str, Any]:
        """Return the answers that there are."""
        assert part == "metrics"
        return {node: self.answers[node] for node in nodes if node in self.answers}

    def count(self, node: str, run: str, n: int) -> None:
        """Have a worker answer."""
        self.answers[node] = {"run": run, "metrics": list(map(metric_as_json, counted(n)))}


def counted(n: int) -> list[Metric]:
    """Return what a process has counted, and has at the moment."""
    return [
        Metric("sent_total", "counter", "Sent.", [Sample({}, n)]),
        Metric("waiting", "gauge", "Waiting.", [Sample({}, n)]),
        Metric("cpu_total", "counter", "Processor.", [Sample({}, n)], "each"),
    ]


async def test_what_workers_have_counted_never_gets_less() -> None:
    """Not where one does not answer, and not where one was started again."""

    async def own() -> list[Metric]:
        return counted(1)

    def none() -> Any:
        raise NotImplementedError

    parts = Parts(none, lambda: 0.0, own)
    workers = Workers()
    parts.nodes = cast("Nodes", workers)

    async def figures() -> tuple[float, float, int]:
        found = {metric.name: metric.samples for metric in await parts.metrics_of_workers()}
        (sent,), (waiting,) = found["sent_total"], found["waiting"]
        assert not isinstance(sent.value, Histogram)
        assert not isinstance(waiting.value, Histogram)
        return sent.value, waiting.value, len(found["cpu_total"])

    assert await figures() == (1, 1, 1)
    workers.count("m-2", "first", 10)
    workers.count("m-3", "first", 100)
    assert await figures() == (111, 111, 3)
    del workers.answers["m-2"]
    assert await figures() == (111, 101, 2)
    workers.count("m-2", "second", 5)
    assert await figures() == (116, 106, 3)
    workers.count("m-2", "third", 0)
    assert await figures() == (116, 101, 3)


async def test_another_node_has_nothing_done_that_is_no_act() -> None:
    """Such as a copy of its files."""

    def none() -> Any:
        raise NotImplementedError

    parts = Parts(none, lambda: 0.0, none)
    with pytest.raises(PenstockError, match='method: read "backup"; allowed: disconnect'):
        await parts.act("backup", "x")
