"""A machine serves with several processes, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from penstock.broker.config.key_types import show_size
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import Disconnect, Publish, Subscribe, SubscriptionRequest
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.broker.server import Server
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.client import QueueClient
from tests.broker.process.test_service_manager import Manager
from tests.helpers.certificates import Authority
from tests.helpers.cluster import Reading, Stream, reached, until
from tests.helpers.commands import penstock
from tests.helpers.process import (
    BrokerProcess,
    Program,
    anonymous_policy,
    is_there,
    running_broker,
)
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import WireClient, connected

N_WORKERS = 2
SERVE = f"{N_WORKERS} workers serve"
MOST_ATTEMPTS = 200


class Workers:
    """A broker of several processes.

    Attributes:
        broker: their supervisor.
        port: that all of them listen on.
    """

    def __init__(self, broker: BrokerProcess, port: int) -> None:
        self.broker = broker
        self.port = port

    def pids(self) -> dict[int, int]:
        """Return the processes by their numbers."""
        found = {}
        for child in psutil.Process(self.broker.process.pid).children():
            with contextlib.suppress(psutil.Error, ValueError, IndexError):
                words = child.cmdline()
                found[int(words[words.index("--worker") + 1].partition("/")[0])] = child.pid
        return found

    async def has(self, client: WireClient) -> int:
        """Return which worker has a connection."""
        own = client.sock.getsockname()
        while True:
            numbers = {pid: number for number, pid in self.pids().items()}
            for each in psutil.net_connections("tcp4"):
                if each.raddr == own and each.pid in numbers:
                    return numbers[each.pid]
            await asyncio.sleep(0.01)

    async def dial(self, number: int) -> WireClient:
        """Return a connection to a worker; the kernel chooses, so it takes some attempts."""
        for _ in range(MOST_ATTEMPTS):
            client = await WireClient.dial(self.port)
            if await self.has(client) == number:
                return client
            client.close()
        raise AssertionError(f"the kernel has given nothing to worker {number}")

    async def at(self, number: int, client_id: str = "", **options: Any) -> WireClient:
        """Return a client that a worker has accepted."""
        client = await self.dial(number)
        assert not (await client.connect(client_id, **options)).reason_code
        return client


def policy_of(port: int, *, n_workers: int = N_WORKERS, **keys: Any) -> dict[str, Any]:
    """Return the policy of a machine."""
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": f"test-{uuid.uuid4().hex}"}
    policy = anonymous_policy(keys.pop("plugins", {}))
    policy["listeners"] = {"default": {"bind": f"127.0.0.1:{port}"}} | keys.pop("listeners", {})
    cluster = {"name": "test", "node": "box", "redis": redis, "workers": n_workers}
    return policy | {"cluster": cluster} | keys


@contextlib.contextmanager
def running_workers(folder: Path, **keys: Any) -> Iterator[Workers]:
    """Run a machine for a block."""
    with reserved_port() as port, running_broker(policy_of(port, **keys), folder) as broker:
        broker.wait_for_log(SERVE)
        yield Workers(broker, port)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Two workers."""
    with running_workers(tmp_path) as found:
        yield found


async def test_a_worker_that_is_killed_under_load_comes_back(workers: Workers) -> None:
    """The other one goes on meanwhile, and nothing acknowledged is lost."""
    streams, reading = [Stream(f"load/{n}") for n in range(4)], Reading()
    async with await workers.at(1) as reader, asyncio.TaskGroup() as tasks:
        await reader.subscribe("load/#", 1)
        taking = tasks.create_task(reading.run(reader))
        for stream in streams:
            tasks.create_task(stream.run(lambda: workers.port))
        await reached(lambda: all(len(each.acknowledged) > 100 for each in streams), "messages")
        killed = workers.pids()[2]
        psutil.Process(killed).kill()
        told = "worker 2: it has ended by SIGKILL; it is started again in 1 s"
        await asyncio.to_thread(workers.broker.wait_for_log, told)
        before = len(reading.came["load/0"])
        await reached(lambda: len(reading.came["load/0"]) > before + 100, "what follows")
        async with await workers.at(2) as client:
            await client.send(Subscribe(1, (SubscriptionRequest("load/#"),)))
            while not isinstance(await client.receive(), Publish):
                pass
        assert workers.pids()[2] != killed
        for stream in streams:
            stream.end()
        for stream in streams:
            await reading.until_all_of(stream)
        taking.cancel()


def change(folder: Path, n_bytes: int) -> None:
    """Write another limit into the policy file."""
    policy = yaml.safe_load((folder / "policy.yaml").read_text())
    policy["limits"] = {"maximum_packet_size": n_bytes}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))


async def limits(workers: Workers) -> list[object]:
    """Return what each worker tells its clients of the limit."""
    found = []
    for number in (1, 2):
        async with await workers.dial(number) as client:
            found.append((await client.connect()).properties.get("maximum_packet_size"))
    return found


async def test_a_worker_that_is_started_again_has_what_the_others_have(
    workers: Workers, tmp_path: Path
) -> None:
    """Though somebody edits the policy file, and has not come to an end."""
    before = await limits(workers)
    change(tmp_path, 12_345)
    await started_again(workers, 2)
    assert await limits(workers) == before
    status = ["cluster", "status", "-c", str(tmp_path / "policy.yaml")]
    told = (await asyncio.to_thread(penstock, *status)).out
    assert "box-2" in told
    assert "policy files" not in told
    workers.broker.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(workers.broker.lines_with, "reloaded: ", 2)
    (tmp_path / "policy.yaml").write_text("limits: {max")
    await started_again(workers, 2)
    assert await limits(workers) == [12_345] * 2


async def test_a_worker_that_is_started_while_the_others_reload_has_what_they_have(
    workers: Workers, tmp_path: Path
) -> None:
    """One of them takes its time; the new one is given the file as it was before."""
    psutil.Process(workers.pids()[1]).suspend()
    psutil.Process(workers.pids()[2]).kill()
    await asyncio.to_thread(workers.broker.wait_for_log, "it is started again in 1 s")
    change(tmp_path, 12_345)
    workers.broker.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(until, lambda: 2 in ports_of(workers)[workers.port], "its start")
    psutil.Process(workers.pids()[1]).resume()
    await asyncio.to_thread(workers.broker.lines_with, "reloaded: ", 2)
    assert await limits(workers) == [12_345] * 2


async def started_again(workers: Workers, number: int) -> None:
    """Kill a worker; return when it serves again."""
    psutil.Process(workers.pids()[number]).kill()
    for numbers, what in (({1, 2} - {number}, "its end"), ({1, 2}, "its start")):
        is_so = partial(lambda wanted: ports_of(workers)[workers.port] == wanted, numbers)
        await asyncio.to_thread(until, is_so, what)


async def test_a_reload_by_the_command_has_one_account(tmp_path: Path) -> None:
    """A worker that cannot is named; a file that is wrong for all is told once."""
    console = {"http": "127.0.0.1:0", "anonymous": "admin"}
    with running_workers(tmp_path, plugins={"console": console}) as workers:
        url = ["--url", workers.broker.console_url]
        change(tmp_path, 12_345)
        done = await asyncio.to_thread(penstock, "reload", *url)
        assert done.status == 0
        assert done.out.count("limits.maximum_packet_size") == 1
        assert await limits(workers) == [12_345] * 2

        change(tmp_path, -1)
        done = await asyncio.to_thread(penstock, "reload", *url)
        assert done.status == 2
        assert done.err.count("limits.maximum_packet_size") == 1
        assert await limits(workers) == [12_345] * 2


def figures(workers: Workers) -> dict[str, float]:
    """Return what the console tells Prometheus, by names with their labels."""
    address = workers.broker.console_url.removeprefix("http://")
    connection = http.client.HTTPConnection(address)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_a_drain_and_the_level_of_the_log_reach_each_worker(tmp_path: Path) -> None:
    """By the commands, which ask the first one: they are said of the machine's broker."""
    console = {"http": "127.0.0.1:0", "anonymous": "admin"}
    with running_workers(tmp_path, plugins={"console": console}) as workers:
        url = ["--url", workers.broker.console_url]
        async with await workers.at(1) as one, await workers.at(2) as two:
            for words in (["log", "level", "debug"], ["drain", "--seconds", "0", "-y"]):
                done = await asyncio.to_thread(penstock, *words, *url)
                assert done.status == 0, done.err
            for number, client in enumerate((one, two), 1):
                await client.take(Disconnect)
                workers.broker.wait_for_match(f"DEBUG penstock: worker {number}: client")


async def test_the_figures_of_all_workers_are_one(tmp_path: Path) -> None:
    """Those of a process say whose they are; what was counted by one that died is not lost."""
    connected, sent = "penstock_clients_connected", "penstock_received_messages_total"
    with running_workers(tmp_path, plugins={"console": {"http": "127.0.0.1:0"}}) as workers:
        async with await workers.at(1, "x") as client, await workers.at(2, "y") as other:
            for one in (client, other):
                await one.send(Publish("t", b"x", 1, packet_id=1))
                await one.receive()

            def all_is_there() -> bool:
                found = figures(workers)
                return found[connected] == 2 and found[sent] >= 2

            await asyncio.to_thread(until, all_is_there, "the sum")
            found = await asyncio.to_thread(figures, workers)
            for name in ("penstock_memory_process_bytes", "process_open_fds"):
                assert [f'{name}{{worker="box-{n}"}}' in found for n in (1, 2)] == [True] * 2
                assert name not in found
            url = ["--url", workers.broker.console_url]
            why = await asyncio.to_thread(penstock, "why", "y", *url)
            assert why.out.startswith("y: connected, at node box-2")
            os.kill(workers.pids()[2], signal.SIGKILL)

            def one_has_gone() -> bool:
                found = figures(workers)
                assert found[sent] >= 2
                return found[connected] == 1

            await asyncio.to_thread(until, one_has_gone, "the rest")


def ports_of(workers: Workers) -> dict[int, set[int]]:
    """Return which workers listen, by port."""
    numbers = {pid: number for number, pid in workers.pids().items()}
    found: dict[int, set[int]] = {}
    for each in psutil.net_connections("tcp4"):
        if each.status == psutil.CONN_LISTEN and each.laddr and each.pid in numbers:
            found.setdefault(each.laddr.port, set()).add(numbers[each.pid])
    return found


def test_all_kinds_of_listeners_share_their_ports(tmp_path: Path) -> None:
    """But a Unix socket, and what plugins listen at, are the first worker's."""
    with reserved_port() as tls, reserved_port() as websocket:
        listeners = {
            "tls": Authority(tmp_path).listener_keys(bind=f"127.0.0.1:{tls}"),
            "web": {"bind": f"127.0.0.1:{websocket}", "type": "ws"},
            "local": {"bind": f"unix:{tmp_path}/socket"},
        }
        plugins = {"console": {"http": "127.0.0.1:0"}}
        with running_workers(tmp_path, listeners=listeners, plugins=plugins) as workers:
            console = int(workers.broker.console_url.rpartition(":")[2])
            shared = {port: {1, 2} for port in (workers.port, tls, websocket)}
            assert ports_of(workers) == shared | {console: {1}}
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/socket")


async def test_queues_take_messages_at_each_worker(tmp_path: Path) -> None:
    """The first one serves them."""
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": f"test-{uuid.uuid4().hex}"}
    jobs = {"jobs": {"topics": ["jobs/#"]}}
    queues = {"engine": "redis", "redis": redis, "http": "127.0.0.1:0", "queues": jobs}
    with running_workers(tmp_path, plugins={"queue": queues}) as workers:
        for number in (1, 2):
            async with await workers.at(number) as client:
                assert not (await client.publish("jobs/1", b"%d" % number)).reason_code
        gateway = QueueClient(workers.broker.queue_url)
        received = await asyncio.to_thread(gateway.receive, "jobs", max_messages=10)
        assert {message.payload for message in received} == {b"1", b"2"}


async def test_an_uplink_has_what_goes_up_and_comes_down_at_each_worker(tmp_path: Path) -> None:
    """Though the first one alone has its connection."""
    (tmp_path / "cloud").mkdir()
    with running_broker(anonymous_policy(), tmp_path / "cloud") as cloud:
        uplink = {
            "upstream": {"address": f"127.0.0.1:{cloud.port}"},
            "up": [{"filter": "up/#"}],
            "down": [{"filter": "down/#", "when": "always"}],
        }
        plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}
        with running_workers(tmp_path, plugins=plugins) as workers:
            async with await connected(cloud.port) as above, await workers.at(2) as below:
                await above.subscribe("up/#", 1)
                await below.subscribe("down/#", 1)
                await below.publish("up/1", b"from below")
                assert (await above.take(Publish)).payload == b"from below"
                # Retained, as the uplink may not have subscribed yet.
                await above.send(Publish("down/1", b"from above", retain=True))
                assert (await below.take(Publish)).payload == b"from above"


def test_a_stop_ends_all(workers: Workers) -> None:
    """They leave the cluster in order, and the port is free."""
    pids = workers.pids().values()
    assert workers.broker.stop() == 0
    assert not any(map(is_there, pids))
    assert "Traceback" not in workers.broker.log
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", workers.port))


def test_the_service_manager_is_told_of_all(tmp_path: Path) -> None:
    """As of one process: once all serve, while they live, and when they stop."""
    manager = Manager(str(tmp_path / "notify"))
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "600000000"}
    with reserved_port() as port:
        broker = BrokerProcess(policy_of(port), tmp_path, env=os.environ | environment)
        try:
            assert manager.next() == {"READY": "1", "STATUS": "serving"}
            broker.wait_for_log(SERVE)
            assert manager.next() == {"WATCHDOG": "1"}
            (tmp_path / "policy.yaml").write_text("no: such key")
            broker.process.send_signal(signal.SIGHUP)
            assert "RELOADING" in manager.next()
            assert manager.next()["STATUS"].startswith("serving; not reloaded, see the log: ")
            broker.process.send_signal(signal.SIGTERM)
            assert manager.next()["STOPPING"] == "1"
            assert broker.wait() == 0
        finally:
            broker.end()
            manager.close()


@pytest.mark.parametrize("is_heard", [True, False])
def test_no_worker_outlives_its_supervisor(workers: Workers, *, is_heard: bool) -> None:
    """However that ends, and whether or not it has read what they have told it."""
    pids = list(workers.pids().values())
    if not is_heard:
        workers.broker.process.send_signal(signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGHUP)
        workers.broker.lines_with("reloaded: ", N_WORKERS)
    workers.broker.process.kill()
    until(lambda: not any(map(is_there, pids)), "the end of the workers")


async def test_a_machine_is_drained(workers: Workers, tmp_path: Path) -> None:
    """By its name, with all its workers; then the program has ended."""
    policy = str(tmp_path / "policy.yaml")
    status = await asyncio.to_thread(penstock, "cluster", "status", "-c", policy, "--json")
    rows = {row["node"]: (row["machine"], row["worker"]) for row in status.json}
    assert rows == {"box-1": ("box", 1), "box-2": ("box", 2)}
    words = ["cluster", "drain", "box", "-c", policy, "--seconds", "0", "-y"]
    done = await asyncio.to_thread(penstock, *words)
    assert done.status == 0, done.err
    assert await asyncio.to_thread(workers.broker.wait) == 0


async def test_a_worker_that_dies_while_it_drains_is_drained_once_it_is_back(
    workers: Workers, tmp_path: Path
) -> None:
    """The machine would else not stop."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await workers.at(n)) for n in (2, 2, 1, 1)]
        policy = str(tmp_path / "policy.yaml")
        words = ["cluster", "drain", "box", "-c", policy, "--seconds", "3600", "-y"]
        draining = asyncio.create_task(asyncio.to_thread(penstock, *words))
        told = [asyncio.create_task(client.take(Disconnect)) for client in clients[:2]]
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)  # the other one is not yet
        psutil.Process(workers.pids()[2]).kill()
        await asyncio.to_thread(workers.broker.wait_for_log, "worker 2 has stopped by itself")
        await asyncio.gather(*told, return_exceptions=True)
        for client in clients:
            client.close()
        done = await draining
    assert done.status == 0, done.err
    assert await asyncio.to_thread(workers.broker.wait) == 0


def refused(policy: Mapping[str, Any], folder: Path) -> str:
    """Return the log of a broker that does not start: status 2, no traceback, nothing left."""
    broker = BrokerProcess(policy, folder)
    try:
        assert broker.wait() == 2, broker.log
        assert "Traceback" not in broker.log
        return broker.log
    finally:
        broker.end()


async def test_a_program_that_starts_no_workers(tmp_path: Path) -> None:
    """Such as a site's broker: it says so, and does not serve as one of them."""
    policy = parse_policy(policy_of(18_831), str(tmp_path / "policy.yaml"))
    with pytest.raises(PenstockError, match="read 2 processes of the broker; allowed: one, or"):
        await Server(policy).start()


def test_workers_share_the_memory_of_the_machine(tmp_path: Path) -> None:
    """What limits are derived from."""
    with running_workers(tmp_path) as workers:
        told = workers.broker.lines_with("limits of this machine, with ", N_WORKERS)
    (each,) = {line.partition("with ")[2].partition(" of memory")[0] for line in told}
    assert each == show_size(machine_memory_bytes() // N_WORKERS)


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, "four", 1_000_000])
def test_a_number_that_is_none(tmp_path: Path, n_workers: int) -> None:
    """Named with its key."""
    assert refused(policy_of(1, n_workers=n_workers), tmp_path).count("cluster.workers: read") == 1


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    """Told once, before any worker starts; also where it is another broker with workers."""
    with running_workers(tmp_path) as workers:
        (tmp_path / "other").mkdir()
        log = refused(policy_of(workers.port), tmp_path / "other")
        assert log.count(f"port {workers.port} is in use by process") == 1
        assert "worker 1:" not in log
        assert len(workers.pids()) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_worker_that_cannot_serve(tmp_path: Path, number: int) -> None:
    """Its fault is told once, and none of the others is left."""
    (tmp_path / "other").mkdir()
    with reserved_port() as port, reserved_port() as elsewhere:
        policy = policy_of(port)
        other = policy | {"cluster": policy["cluster"] | {"node": f"box-{number}", "workers": 1}}
        other["listeners"] = {"default": {"bind": f"127.0.0.1:{elsewhere}"}}
        with running_broker(other, tmp_path / "other"):
            log = refused(policy, tmp_path)
    assert log.count(f"worker {number} does not serve: it has ended with status 2") == 1
    assert log.count("another broker has this name") == 1


def test_a_stop_while_the_workers_wait_for_their_engine(tmp_path: Path) -> None:
    """Ends them, too."""
    with reserved_port() as port:
        policy = policy_of(port)
        policy["cluster"]["redis"] = {"server": "127.0.0.1:1"}
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
        words = [sys.executable, "-m", "penstock", "broker", "-c", "policy.yaml"]
        program = Program(words, cwd=tmp_path, is_forked=True)
        try:
            program.wait_for_log("this broker waits for its engine")
            (worker,) = psutil.Process(program.process.pid).children()
            assert program.stop() == 0
            assert not is_there(worker.pid)
            assert "Traceback" not in program.log
        finally:
            program.end()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"listeners": {"default": {"bind": "127.0.0.1:0"}}}, "listeners.default.bind: "),
        ({"plugins": {"queue": {"queues": {"a": {}}}}}, "plugins.queue.engine: read sqlite"),
        ({"plugins": {"parts": {}}}, "plugins.parts: read 2 processes"),
        (
            {
                "plugins": {
                    "uplink": {
                        "site": "berlin",
                        "uplinks": {
                            "cloud": {
                                "upstream": {"address": "127.0.0.1:9"},
                                "down": [{"filter": "#"}],
                            }
                        },
                    }
                }
            },
            "plugins.uplink.uplinks.cloud.down[0].when: read subscribed",
        ),
    ],
    ids=["any port", "queues in a file", "parts", "an uplink that follows subscriptions"],
)
def test_what_processes_cannot_share(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    """Named at the check, as at the start."""
    policy = policy_of(18_831)
    policy["plugins"] |= keys.get("plugins", {})
    policy |= {key: value for key, value in keys.items() if key != "plugins"}
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    done = penstock("check", str(file))
    assert done.status == 2
    assert told in done.err
