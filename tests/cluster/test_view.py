"""An operator sees all brokers as one, by the console and the command line of any of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.plugins.console.commands.asking import Console
from tests.helpers.browser import chromium
from tests.helpers.cluster import Cluster, running_brokers, until
from tests.helpers.commands import PENSTOCK, Done, penstock
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import Program
from tests.helpers.redis_server import shared_redis

CONSOLE = {"console": {"http": "127.0.0.1:0", "anonymous": "admin"}}

LASTING: dict[str, Any] = {"properties": connect_properties(SessionExpiryInterval=600)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers with consoles that no test ends."""
    folder = tmp_path_factory.mktemp("view")
    with running_brokers(folder, "a", "b", "c", plugins=CONSOLE, sys_interval=1) as cluster:
        yield cluster


def asked(cluster: Cluster, name: str, *words: str, may_miss: bool = False) -> Done:
    """Give a command to the console of a broker; again where a node was too busy to answer."""
    while True:
        done = penstock(*words, "--url", cluster[name].console_url)
        if may_miss or "not answer" not in done.err:
            return done


def got(cluster: Cluster, name: str, resource: str, **query: object) -> Any:
    """Return what the console of a broker answers; see `asked`."""
    while True:
        answer = Console(cluster[name].console_url).get(resource, **query)
        if not answer.get("missing"):
            return answer


@contextmanager
def clients(cluster: Cluster, **at: str) -> Iterator[dict[str, PahoClient]]:
    """Connect clients for a block, each to a broker; all subscribe to a topic of their name."""
    with ExitStack() as stack:
        yield {
            client_id: stack.enter_context(
                cluster.client(name, client_id, subscribes=f"to/{client_id}")
            )
            for client_id, name in at.items()
        }


def away(cluster: Cluster, name: str, client_id: str, n_messages: int = 0) -> None:
    """Leave a session at a broker that has got messages since."""
    with cluster.client(name, client_id, subscribes=f"to/{client_id}", **LASTING):
        pass
    with cluster.client(name) as publisher:
        for _ in range(n_messages):
            publisher.publish(f"to/{client_id}", bytes(1000))


def test_clients_of_all_nodes_are_listed_page_by_page(shared: Cluster) -> None:
    """Each names its node; one whose session waits for it has none, and says how much waits."""
    away(shared, "b", "list-away", 3)
    with clients(shared, list1="a", list2="b", list3="c", list4="b"):
        queries: list[dict[str, object]] = [{}, {"sort": "queued_bytes"}, {"limit": 1}]
        for query in queries:
            rows: dict[str, Any] = {}
            after: object = ""
            while after is not None:
                answer = got(shared, "a", "clients", search="list", after=after, **query)
                assert answer["total"] == 5
                rows |= {row["client_id"]: row for row in answer["clients"]}
                after = answer["next"]
            at = {client_id: row["node"] for client_id, row in rows.items()}
            assert at == {"list1": "a", "list2": "b", "list3": "c", "list4": "b", "list-away": ""}
            assert rows["list-away"]["queued"] == 3
        found = asked(shared, "c", "client", "ls", "--search", "list")
        assert ["list2", "b"] in [[words[0], words[-1]] for words in found.rows]
        everybody = got(shared, "b", "clients")["clients"]
        assert {"list1", "list-away"} <= {row["client_id"] for row in everybody}
        filters = got(shared, "a", "subscriptions", search="to/list3")["subscriptions"]
        assert [row["client_id"] for row in filters] == ["list3"]


def test_a_client_elsewhere_is_shown_and_disconnected(shared: Cluster) -> None:
    """By any console; what it does to the client is told by the client's own node."""
    with clients(shared, kicked="b") as there:
        why = asked(shared, "a", "why", "kicked")
        assert why.out.startswith("kicked: connected, at node b, listener default\n"), why.err
        assert asked(shared, "c", "client", "show", "kicked").out.startswith("from 127.0.0.1")
        done = asked(shared, "a", "client", "kick", "kicked", "--reason", "enough")
        assert done.status == 0, done.err
        assert there["kicked"].disconnected().value == 0x98
        again = asked(shared, "a", "client", "kick", "nobody")
        assert (again.status, "allowed: one that is connected" in again.err) == (1, True)
        assert asked(shared, "a", "client", "release", "nobody").status == 1
    until(lambda: asked(shared, "a", "why", "kicked").out.startswith("kicked: gone for "))


def test_a_session_that_waits_for_its_client_is_shown_and_ended(shared: Cluster) -> None:
    """With what is in its mailbox; at no node it is connected."""
    away(shared, "b", "gone", 2)
    told = asked(shared, "a", "client", "show", "gone").out
    assert told.startswith("gone: not connected\nmailbox: 2, "), told
    assert got(shared, "a", "clients/gone")["subscriptions"]["filters"] == ["to/gone"]
    assert asked(shared, "c", "client", "rm", "gone", "-y").status == 0
    with shared.client("b", "gone", clean_start=False) as back:
        assert not back.connack[0]


def test_who_is_banned_is_banned_everywhere(tmp_path: Path) -> None:
    """Also at a node that comes later, until the ban is lifted anywhere."""
    with running_brokers(tmp_path, "a", "b", plugins=CONSOLE) as cluster:
        with clients(cluster, x="b") as there:
            done = asked(cluster, "a", "client", "ban", "x")
            assert done.status == 0, done.err
            assert there["x"].disconnected().value == 0x98
        cluster.start("c")
        until(lambda: got(cluster, "c", "bans")["bans"], "the ban")
        for name in "abc":
            with PahoClient(cluster[name].port, "x") as client:
                assert not client.connect()
        assert asked(cluster, "c", "client", "unban", "x").status == 0
        for name in "abc":
            until(lambda name=name: not got(cluster, name, "bans")["bans"])  # type: ignore[misc]
            with clients(cluster, x=name):
                pass


def test_a_node_that_stands_still_is_named(tmp_path: Path) -> None:
    """The page and the command line answer without it, and one line says so."""
    with (
        running_brokers(tmp_path, "a", "b", plugins=CONSOLE) as cluster,
        clients(cluster, one="a", two="b"),
        chromium() as browser,
    ):
        browser.open(f"{cluster['a'].console_url}/#/clients")
        browser.wait_for("two")
        browser.wait(lambda: browser.named("b", "td"))
        cluster["b"].process.send_signal(signal.SIGSTOP)
        prefix = cluster.section["redis"]["prefix"]
        with Redis(port=shared_redis()) as redis:  # it is not to be evicted meanwhile
            redis.set(f"{prefix}:{{cluster:test}}:alive:b", "", ex=600)
        try:
            browser.wait_for("without what is at node b: it does not answer")
            found = asked(cluster, "a", "client", "ls", may_miss=True)
            assert [words[0] for words in found.rows] == ["CLIENT", "one"]
            assert found.err == "not shown: what is at node b: it does not answer\n"
            kick = asked(cluster, "a", "client", "kick", "two", may_miss=True)
            assert (kick.status, "node b: it does not answer" in kick.err) == (2, True)
            ban = asked(cluster, "a", "client", "ban", "x", may_miss=True)
            assert ban.err == "not known to be done at node b: it does not answer\n"
            level = asked(cluster, "a", "log", "level", "info", may_miss=True)
            assert not level.err, "it was not asked"
        finally:
            cluster["b"].process.send_signal(signal.SIGCONT)
        browser.wait_for("two")
        until(
            lambda: "client_id" in asked(cluster, "b", "client", "bans").out, "what it had not done"
        )


def test_a_client_is_followed_wherever_it_is(shared: Cluster) -> None:
    """What it does at another node comes as what happens at the one that is asked."""
    command = [str(PENSTOCK), "client", "trace", "roamer", "--url", shared["a"].console_url]
    program = Program(command, is_forked=True)

    def is_seen(name: str) -> bool:
        # The other node begins to watch a moment after the console has answered.
        with shared.client(name, "roamer") as client:
            client.publish(f"trace/{name}", b"x")
        return f"trace/{name}" in program.log

    try:
        program.wait_for_log("following roamer")
        for name in "ba":
            until(lambda name=name: is_seen(name), f"what is done at {name}")  # type: ignore[misc]
    finally:
        program.end()


def test_figures_are_those_of_all_nodes(shared: Cluster) -> None:
    """At once in the overview, soon in `$SYS`; each node's own in `cluster status`.

    What carries messages from node to node is no client.
    """
    with (
        clients(shared, sum1="a", sum2="b", sum3="c") as there,
        shared.client("a", subscribes="$SYS/broker/clients/connected") as reader,
    ):
        n_clients = 4
        for client in there.values():
            reader.publish("to/sum1", b"x")
            client.publish("to/sum2", b"x")
        there["sum1"].payloads(3)
        there["sum2"].payloads(3)
        until(lambda: got(shared, "b", "overview")["clients"]["connected"] == n_clients)
        while int(reader.message().payload) != n_clients:
            pass
        policy = str(Path(f"/proc/{shared['a'].process.pid}/cwd").resolve() / "policy.yaml")

        def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = penstock("cluster", "status", "-c", policy, "--json").json
            return found

        until(lambda: [row.get("clients") for row in rows()] == [2, 1, 1])
        assert [row["console"] for row in rows()] == [shared[name].console_url for name in "abc"]


def test_a_node_without_a_console_is_named(tmp_path: Path) -> None:
    """As what it has cannot be shown; it is told why, where its client was asked for."""
    with running_brokers(tmp_path, "b") as cluster:
        cluster.plugins = CONSOLE
        cluster.start("a")
        with clients(cluster, there="b"):
            why = "at node b: its policy file has no plugin console"
            until(lambda: why in asked(cluster, "a", "client", "ls", may_miss=True).err)
            told = asked(cluster, "a", "why", "there").err
            assert "node b: its policy file has no plugin console" in told
