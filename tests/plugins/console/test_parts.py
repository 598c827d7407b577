from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.counters import Histogram, Metric, Sample
from penstock.broker.errors import PenstockError
from penstock.plugins.console import parts as parts_module
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


class Elsewhere:
    """A node that has all clients, for one that has none; their sessions outlive connections."""

    node, others = "asks", ("has",)
    silent: Mapping[str, str] = {}
    kept = ("lamp1", "lamp2", "lamp3")

    def __init__(self) -> None:
        row = parts_module._AWAY._replace(username="ada", is_connected=True)
        operations = SimpleNamespace(
            client_ids=lambda: list(self.kept), row=lambda one: row._replace(client_id=one)
        )
        self.parts = Parts(lambda: cast("Any", operations), lambda: 0.0, cast("Any", None))
        self.parts.nodes = cast("Nodes", SimpleNamespace(node="has", kept=self.kept))

    async def ask(self, _: Iterable[str], _part: str, *args: Any) -> dict[str, Any]:
        """Return the page of the other node."""
        return {"has": await self.parts.own_list(*args)}

    async def find(self, _: str) -> tuple[str, None]:
        """Return who has a client."""
        return "has", None


@pytest.mark.parametrize("search", ["", "ADA", "lamp", "2"])
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_a_client_at_another_node_counts_once(search: str, limit: int) -> None:
    """Also where its session outlives its connection, and whatever has matched."""
    operations: Any = SimpleNamespace(client_ids=list)
    parts = Parts(lambda: operations, lambda: 0.0, cast("Any", None))
    parts.nodes = cast("Nodes", Elsewhere())
    query = {"search": search, "limit": str(limit), "sort": "client_id"}
    found = json.loads(await parts.text("clients", query))
    assert found["total"] == (1 if search == "2" else 3)
    assert len(found["clients"]) == min(found["total"], limit)
