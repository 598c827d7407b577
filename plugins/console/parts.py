"""What this program knows, and what all nodes know together where it is one of several.

Theory of operation. A node answers the others about its own clients: with a page of a list, by the
search and the order that were asked for, with a client's report, with its metrics; and it does what
is to be done to a client of its own. Who asks puts the pages together, so that no list of all
clients leaves a node. Sessions whose clients are away are at no node: who asks adds those whose
mailboxes it knows, and looks up what waits in those that are shown.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.client_report import (
    ClientReport,
    LedgerFigures,
    LinkFigures,
    SubscriptionFigures,
    WithholdingFigures,
    as_json,
    first_filters,
)
from penstock.broker.counters import Metric
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.operations_contract import (
    ClientRow,
    Operations,
    RetainedRow,
    SubscriptionRow,
    TopicRow,
)
from penstock.plugins.console.delivery_rates import DeliveryRates
from penstock.plugins.console.exposition import metric_as_json, metric_of_json, summed
from penstock.plugins.console.lists import Form, Page
from penstock.plugins.console.report_text import describe
from penstock.plugins.console.shared import Answers
from penstock.plugins.web.service import RequestError, show

if TYPE_CHECKING:
    from penstock.plugins.web.nodes import Mailbox, Nodes

Row = TypeVar("Row")

ROWS_IN_A_TURN: Final = 100
"""So many rows are looked at before other tasks run: a millisecond."""

MOST_CHEAP: Final = 1_000
"""With more sessions that outlive their connection, each list is made for all who ask."""

ACTS: Final = (
    *("disconnect", "release_held", "drop_held", "end_session", "ban", "unban"),
    *("drain", "set_log_level"),
)
"""What a node does when another one asks for it: methods of its operations."""

_OF_THE_BROKER: Final = f"{LOCAL_CLIENT_PREFIX}$"
"""Clients in a node's own process whose names begin so carry messages between nodes."""

_CLIENTS: Final = Form[ClientRow](
    name="clients",
    key=lambda row: row.client_id,
    key_name="client_id",
    sorts=(
        *("rtt", "withheld", "queued", "queued_bytes", "inflight", "delivered", "dropped"),
        *("connected_seconds", "delivered_per_second"),
    ),
    texts=lambda row: (row.client_id, row.username, row.address, row.listener, row.node),
)
_CLIENT_IDS: Final = Form[str](
    name="clients",
    key=lambda client_id: client_id,
    key_name="client_id",
    sorts=_CLIENTS.sorts,
    texts=lambda client_id: (client_id,),
)
_TOPICS: Final = Form[TopicRow](
    name="topics",
    key=lambda row: f"{row.topic}\0{row.size}\0{row.node}",
    key_name="topic",
    sorts=("bytes", "messages", "oldest_seconds"),
    texts=lambda row: (row.topic,),
    first="bytes",
)
_SUBSCRIPTIONS: Final = Form[SubscriptionRow](
    name="subscriptions",
    key=lambda row: f"{row.client_id}\0{row.share_name}\0{row.topic_filter}",
    key_name="client_id",
    sorts=("qos",),
    texts=lambda row: (row.client_id, row.topic_filter, row.share_name),
)
_RETAINED: Final = Form[RetainedRow](
    name="retained",
    key=lambda row: row.topic,
    key_name="topic",
    sorts=("bytes", "age_seconds"),
    texts=lambda row: (row.topic, row.publisher),
)

_AWAY: Final = ClientRow._make(("", None, "", "", "", False, None, None, *[0] * 7, None, ""))
"""The row of a session that no node has, without its client and what waits for it."""


LISTS: Final[Mapping[str, tuple[Form[Any], Callable[..., Any]]]] = {
    "clients": (_CLIENTS, ClientRow),
    "topics": (_TOPICS, TopicRow),
    "subscriptions": (_SUBSCRIPTIONS, SubscriptionRow),
    "retained": (_RETAINED, RetainedRow),
}
"""What each list can be asked for, and what makes a row of JSON."""


class Parts:
    """Lists, clients and metrics, of this program and of all nodes.

    Args:
        need: returns what can be seen and done here, or raises a `RequestError`.
        clock: returns monotonic seconds.
        metrics: returns the metrics of this program.
        changed: is called when something was changed here.

    Attributes:
        nodes: the others; None where this program is none of several.
        need: as above.
    """

    def __init__(
        self,
        need: Callable[[], Operations],
        clock: Callable[[], float],
        metrics: Callable[[], Awaitable[Sequence[Metric]]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.nodes: Nodes | None = None
        self.need = need
        self._clock = clock
        self._metrics = metrics
        self._changed = changed
        self._rates = DeliveryRates()
        self._pages = Answers[dict[str, Any]](clock)
        self._run = secrets.token_hex(8)
        self._workers: dict[str, tuple[str, list[Metric]]] = {}
        self._of_ended: list[Metric] = []

    def close(self) -> None:
        """End what runs."""
        self._pages.close()

    def missing(self, *, on_machine: bool = False) -> dict[str, Any]:
        """Return what an answer says of nodes that have not answered, if there are nodes.

        Those of this machine alone may have been asked.
        """
        nodes = self.nodes
        if nodes is None:
            return {}
        workers = nodes.workers if on_machine else ()
        asked = {n: why for n, why in nodes.silent.items() if n in workers or not on_machine}
        return {"missing": asked}

    # -- lists --------------------------------------------------------------------------------

    def is_cheap(self, name: str, query: Mapping[str, str]) -> bool:
        """Return whether a list costs little, so that it can be made for each who asks.

        Raises:
            RequestError: a wrong query.
        """
        page: Page[Any] = Page(LISTS[name][0], query)
        # Of clients by their ids, only those of the page have to be looked at.
        by_id = name == "clients" and page.sort == _CLIENTS.key_name and not page.search
        return by_id and len(self._kept) <= MOST_CHEAP

    async def text(self, name: str, query: Mapping[str, str]) -> str:
        """Return a page of a list of all nodes, as JSON.

        Raises:
            RequestError: a wrong query.
        """
        nodes = self.nodes
        if nodes is None or name == "retained":  # which each node has
            return (await self.page(name, query)).text()
        page: Page[Any]
        answers: dict[str, Any]
        asking = nodes.ask(nodes.others, "list", name, dict(query))
        page, answers = await asyncio.gather(self.page(name, query), asking)
        for answer in answers.values():
            rows = [LISTS[name][1](*row) for row in answer["rows"]]
            page.join(rows, answer["total"], answer["n_behind"])
        shown = None
        if name == "clients":
            shown = await self._with_away(nodes, page, list(answers.values()))
        return page.text(shown, **self.missing())

    async def own_list(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Answer another node with a page of this one."""

        async def make() -> dict[str, Any]:
            page = await self.page(name, query)
            counts = {"total": page.total, "n_behind": page.n_behind, "n_kept": page.n_kept}
            return {"rows": page.rows, **counts}

        if self.is_cheap(name, query):
            return await make()
        return await self._pages.get(f"{name}?{sorted(query.items())}", make)

    async def page(self, name: str, query: Mapping[str, str]) -> Page[Any]:
        """Return a page of a list of this program.

        Raises:
            RequestError: a wrong query.
        """
        page: Page[Any] = Page(LISTS[name][0], query)
        operations = self.need()
        if name == "clients":
            await self._add_clients(page, query)
        elif name == "topics":
            node = self._node
            await _add(page, [row._replace(node=node) for row in await operations.topics()])
        elif name == "subscriptions":
            rows = await operations.subscriptions(query.get("client") or None)
            wanted = query.get("filter")
            await _add(page, [row for row in rows if not wanted or row.topic_filter == wanted])
        else:
            await _add(page, await operations.retained(query.get("filter") or "#"))
        return page

    @property
    def _node(self) -> str:
        return "" if self.nodes is None else self.nodes.node

    @property
    def _kept(self) -> Collection[str]:
        return () if self.nodes is None else self.nodes.kept

    def _client_ids(self) -> list[str]:
        found = self.need().client_ids()
        if self.nodes is None:
            return found
        return [one for one in found if not one.startswith(_OF_THE_BROKER)]

    async def _add_clients(self, page: Page[ClientRow], query: Mapping[str, str]) -> None:
        """Show a page all clients; of their rows, only those of the page are kept."""
        rates, now, kept = self._rates, self._clock(), self._kept
        if self.is_cheap("clients", query):
            ids = Page(_CLIENT_IDS, query)
            for some in in_turns(self._client_ids()):
                page.n_kept += sum(one in kept for one in ids.add(some))
                await asyncio.sleep(0)
            for some in in_turns(ids.rows):
                page.add([row._replace(node=self._node) for row in self._rows(some)])
                await asyncio.sleep(0)
            page.total, page.n_behind = ids.total, ids.n_behind
            return
        rates.begin(now)
        for some in in_turns(self._client_ids()):
            rows = [rates.with_rate(row, now)._replace(node=self._node) for row in self._rows(some)]
            page.n_kept += sum(
                row.client_id in kept and page.search in row.client_id.lower()
                for row in page.add(rows)
            )
            await asyncio.sleep(0)

    def _rows(self, client_ids: Sequence[str]) -> Iterator[ClientRow]:
        return filter(None, map(self.need().row, client_ids))

    async def _with_away(
        self, nodes: Nodes, page: Page[ClientRow], answers: Sequence[dict[str, Any]]
    ) -> list[Any]:
        """Add sessions that no node has to a page of all others; return its rows for JSON."""
        there = {row[0] for answer in answers for row in answer["rows"]}
        known = there.union(self._client_ids())
        for some in in_turns(list(nodes.kept)):
            page.add([_AWAY._replace(client_id=one) for one in some if one not in known])
            await asyncio.sleep(0)
        # Those of other nodes that are on no page of theirs were taken for away.
        page.total -= sum(answer["n_kept"] for answer in answers)
        kept = there.intersection(nodes.kept)
        page.total += sum(page.search in client_id.lower() for client_id in kept)
        away = [row.client_id for row in page.rows if not row.node]
        looks = await asyncio.gather(*map(nodes.find, away), return_exceptions=True)
        found = dict(zip(away, looks, strict=True))
        rows = []
        for row in page.rows:
            look = found.get(row.client_id)
            if isinstance(look, tuple):
                node, box = look
                if node or box is None:
                    continue  # it has come back
                row = row._replace(queued=box.messages, queued_bytes=box.bytes)  # noqa: PLW2901
            rows.append(as_json(row))
        return rows

    # -- one client ---------------------------------------------------------------------------

    async def own_client(self, client_id: str) -> dict[str, Any] | None:
        """Return what this program knows of a client; None where that is nothing."""
        operations = self.need()
        report = operations.report(client_id)
        if report is None:
            return None
        row = operations.row(client_id)
        found: dict[str, Any] = as_json(report)
        return found | {
            "row": None if row is None else as_json(row._replace(node=self._node)),
            "lately": [as_json(one) for one in operations.lately(client_id)],
            "node": self._node if row is not None else "",
        }

    async def client(self, client_id: str) -> dict[str, Any]:
        """Return what is known of a client anywhere.

        Raises:
            RequestError: that is nothing, or the node that has the client does not answer.
        """
        found = await self.own_client(client_id)
        if self.nodes is not None:
            found = await self._found(self.nodes, client_id, found)
        if found is None:
            raise unknown_client(client_id)
        return found | {"why": describe(found)}

    async def _found(
        self, nodes: Nodes, client_id: str, own: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return what is known of a client anywhere, by what this node knows; None for nothing."""
        is_here = own is not None and own["row"] is not None
        try:
            node, box = await nodes.find(client_id)
        except RequestError:
            if not is_here:
                raise
            return own
        found = own
        if not is_here and node not in ("", nodes.node):
            found = await nodes.ask_one(node, "client", client_id) or own
        elif not is_here and box is not None:
            found = _away(client_id, box)
        elif not is_here:
            answers = (await nodes.ask(nodes.others, "client", client_id)).values()
            gone = [one for one in (own, *answers) if one is not None]
            found = min(gone, key=lambda one: one["gone_seconds"] or 0, default=None)
        if found is not None and box is not None:
            found["mailbox"] = box._asdict()
            del found["mailbox"]["filters"]
        return found

    # -- what is done -------------------------------------------------------------------------

    async def act(self, method: str, *args: Any) -> Any:
        """Do something here; return what the operations return."""
        if method not in ACTS:
            raise RequestError(f"method: read {show(method)}; allowed: {', '.join(ACTS)}")
        done = getattr(self.need(), method)(*args)
        if isawaitable(done):
            done = await done
        self._changed()
        self._pages.forget()
        return done

    async def do(self, client_id: str, method: str, *args: Any) -> Any:
        """Do something to a client, wherever it is; see `act`.

        Raises:
            RequestError: it is at a node that does not answer, or nowhere.
        """
        nodes, is_here = self.nodes, self.need().row(client_id) is not None
        if nodes is not None and not is_here:
            node, box = await nodes.find(client_id)
            if node not in ("", nodes.node):
                return await nodes.ask_one(node, "act", method, client_id, *args)
            if not node and box is not None and method == "end_session":
                await nodes.end_away(client_id)
                return True
        if not is_here and method in ("release_held", "drop_held"):
            raise unknown_client(client_id)
        return await self.act(method, client_id, *args)

    async def do_everywhere(self, method: str, *args: Any, on_machine: bool = False) -> list[Any]:
        """Do something at all nodes, or in each process of this machine's broker.

        Returns:
            What those answer that have answered.
        """
        own = await self.act(method, *args)
        if self.nodes is None:
            return [own]
        others = self.nodes.workers if on_machine else self.nodes.others
        answers = await self.nodes.ask(others, "act", method, *args)
        return [own, *answers.values()]

    async def tell_bans(self, node: str) -> None:
        """Have a node that has joined refuse whom this one refuses."""
        assert self.nodes is not None  # noqa: S101 (they tell of it)
        for ban in self.need().bans():
            await self.nodes.ask([node], "act", "ban", *ban)

    # -- metrics ------------------------------------------------------------------------------

    async def own_metrics(self) -> dict[str, Any]:
        """Answer another node with the metrics of this one, and which run of it that is."""
        return {"run": self._run, "metrics": [metric_as_json(one) for one in await self._metrics()]}

    async def metrics_of_all(self) -> Sequence[Metric]:
        """Return the metrics of all nodes together."""
        nodes, own = self.nodes, await self._metrics()
        if nodes is None or not nodes.others:
            return own
        answers = await nodes.ask(nodes.others, "metrics")
        others = {node: map(metric_of_json, one["metrics"]) for node, one in answers.items()}
        return summed({nodes.node: own, **others})

    async def metrics_of_workers(self) -> Sequence[Metric]:
        """Return the metrics of this program and its workers together.

        What a worker has counted stays in the sums when it has ended, or does not answer.
        """
        nodes, own = self.nodes, await self._metrics()
        if nodes is None or not (nodes.workers or self._workers):
            return own
        answers = await nodes.ask(nodes.workers, "metrics")
        for node, answer in answers.items():
            run, before = self._workers.get(node, ("", []))
            if run not in ("", answer["run"]):
                risen = filter(_only_rises, before)
                self._of_ended = summed({"": self._of_ended, node: risen})
            metrics = [metric_of_json(one) for one in answer["metrics"]]
            self._workers[node] = answer["run"], metrics
        shown: dict[str, Iterable[Metric]] = {nodes.node: own, "": self._of_ended}
        for node, (_, metrics) in self._workers.items():
            shown[node] = metrics if node in answers else filter(_only_rises, metrics)
        return summed(shown)


def _only_rises(metric: Metric) -> bool:
    return metric.across == "sum" and metric.type in ("counter", "histogram")


def _away(client_id: str, box: Mailbox) -> dict[str, Any]:
    """Return what is known of a session that no node has."""
    report = ClientReport(
        client_id,
        is_connected=False,
        gone_seconds=None,
        username=None,
        listener="",
        why_away="",
        subscriptions=SubscriptionFigures(len(box.filters), 0, 0, first_filters(box.filters)),
        link=LinkFigures(None, "", 0, None, None, None, 0, None, 0, None, is_connected=False),
        withholding=WithholdingFigures(0, 0, 0, None, None, [], None, None),
        ledger=LedgerFigures(
            box.messages, 0, 0, 0, box.messages, 0, 0, {}, box.bytes, "not connected"
        ),
    )
    found: dict[str, Any] = as_json(report)
    return found | {"row": None, "lately": [], "node": ""}


def in_turns(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield some rows at a time; others are to have a turn after each."""
    for start in range(0, len(rows), ROWS_IN_A_TURN):
        yield rows[start : start + ROWS_IN_A_TURN]


async def _add(page: Page[Row], rows: Sequence[Row]) -> None:
    for some in in_turns(rows):
        page.add(some)
        await asyncio.sleep(0)


def unknown_client(client_id: str) -> RequestError:
    """Return the error of a client that is not there."""
    return RequestError(
        f"client: read {show(client_id)}; allowed: a client that has a session, or one of the last "
        "that have gone",
        404,
    )
