from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import (
    EngineStartError,
    GroupSpec,
    NewMessage,
    QueueSpec,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.redis.functions import LIBRARY
from penstock.plugins.redis.discovery import RedisSentinels
from penstock.plugins.redis.errors import EngineAwayError
from penstock.plugins.redis.login import Login, ask_directly
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.certificates import Authority
from tests.helpers.redis_server import (
    RedisProcess,
    running_cluster,
    running_redis,
    running_sentinels,
    shared_redis,
)
from tests.plugins.queue.engines.contract.harness import UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """Start a server of this module, whose settings tests change and put back."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


async def asked(server: RedisServer, *commands: tuple[str, ...]) -> None:
    """Carry out commands."""
    connection = server.connection()
    await connection.connect()
    for command in commands:
        await ask_directly(connection, *command)
    await connection.disconnect()


@asynccontextmanager
async def server_that_says(info: str) -> AsyncIterator[RedisServer]:
    """Answer INFO with a text, and every other command with OK."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            body = info.encode()
            is_info = words[0] == b"INFO"
            writer.write(b"$%d\r\n%s\r\n" % (len(body), body) if is_info else b"+OK\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield RedisServer(port=listener.sockets[0].getsockname()[1])
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ("redis_version:6.2.14\r\n", "read Redis 6.2.14; allowed: Redis 7 or newer, Valkey 8"),
        ("redis_version:7.2.4\r\nvalkey_version:7.2.9\r\n", "read Valkey 7.2.9; allowed: Redis 7"),
        ("redis_version:7.0.15\r\ncluster_enabled:1\r\n", "cluster_enabled: 1; allowed: a server"),
        ("redis_version:7.0.15\r\nrole:slave\r\n", "read role: slave; allowed: master"),
        ("redis_version:7.0.15\r\nredis_mode:sentinel\r\n", "read role: sentinel; allowed: master"),
        ("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n", "read allkeys-lru; allowed:"),
        ("", "version of server"),
    ],
)
async def test_a_server_that_could_lose_messages_is_refused(info: str, told: str) -> None:
    """Too old, a part of a cluster, a replica, or one that deletes what it has no memory for."""
    async with server_that_says(info) as server:
        with pytest.raises(EngineStartError, match=told):
            await server.connect(LOGGER)


async def test_a_master_that_was_replaced_since_sentinels_have_named_it_is_waited_for() -> None:
    """A broker that starts meanwhile does not end: they will name the new one."""
    async with server_that_says("redis_version:7.0.15\r\nrole:slave\r\n") as server:
        watched = replace(server, sentinels=RedisSentinels((("127.0.0.1", 1),), "m"))
        with pytest.raises(EngineAwayError, match="read role: slave"):
            await watched.connect(LOGGER, (server.host, server.port))


async def test_a_clock_that_is_far_off_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Messages are safe, and leases may be shorter or longer than they should be."""
    for ahead, n_warnings in ((0, 0), (-600, 1), (600, 1)):
        caplog.clear()
        microseconds = int((time.time() + ahead) * 1_000_000)
        info = f"redis_version:7.0.15\r\nserver_time_usec:{microseconds}\r\nmaxmemory_policy:x\r\n"
        async with server_that_says(info) as server:
            with pytest.raises(EngineStartError, match="read x; allowed: noeviction"):
                await server.connect(LOGGER)
        assert len([one for one in caplog.messages if "clock of server" in one]) == n_warnings


async def test_a_master_that_would_go_on_without_replicas_is_named(
    private: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """While a failover replaces it: what it gives away and settles then is received again."""
    address = ("127.0.0.1", private.port)
    sentinels = RedisSentinels((("127.0.0.1", 1),), "m")
    for min_replicas, least, n_warnings in ((0, 0, 0), (2, 1, 1), (2, 2, 0), (0, 0, 0)):
        await asked(
            RedisServer(port=private.port), ("CONFIG", "SET", "min-replicas-to-write", str(least))
        )
        caplog.clear()
        patience = Patience(min_replicas=min_replicas)
        server = RedisServer(sentinels=sentinels, patience=patience)
        connection = await server.connect(LOGGER, address)
        await connection.disconnect()
        told = [one for one in caplog.messages if "min-replicas-to-write" in one]
        assert len(told) == n_warnings


async def test_replicas_that_need_not_have_what_is_acknowledged_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sentinel may choose one of them."""
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "0"))
        for name in "12":
            line = f"replicaof 127.0.0.1 {master.port}"
            stack.enter_context(running_redis(tmp_path / name, line))
        sentinels = RedisSentinels((("127.0.0.1", 1),), "m")
        with Redis(port=master.port) as admin:
            await until(lambda: admin.info("replication")["connected_slaves"] == 2)
        for min_replicas, n_warnings in ((1, 1), (2, 0)):
            caplog.clear()
            patience = Patience(min_replicas=min_replicas)
            server = RedisServer(sentinels=sentinels, patience=patience)
            await (await server.connect(LOGGER, ("127.0.0.1", master.port))).disconnect()
            told = [one for one in caplog.messages if "2 replicas, and min_replicas is 1" in one]
            assert len(told) == n_warnings


async def test_a_real_server_says_that_it_evicts(private: RedisProcess) -> None:
    """The check reads what servers tell."""
    server = RedisServer(port=private.port)
    await asked(server, ("CONFIG", "SET", "maxmemory-policy", "volatile-ttl"))
    with pytest.raises(EngineStartError, match="read volatile-ttl; allowed: noeviction"):
        await server.connect(LOGGER, library=LIBRARY)
    await asked(server, ("CONFIG", "SET", "maxmemory-policy", "noeviction"))
    await (await server.connect(LOGGER, library=LIBRARY)).disconnect()


async def test_a_library_of_another_version_is_refused(private: RedisProcess) -> None:
    """It is named. One of this version may have other code; the own one is loaded once."""
    server = RedisServer(port=private.port)
    code = "#!lua name={}\nredis.register_function('other', function() end)"
    await asked(
        server, ("FUNCTION", "FLUSH"), ("FUNCTION", "LOAD", code.format("penstock_queue_0_1"))
    )
    told = r"read penstock_queue_0_1; allowed: penstock_queue_1_\*"
    with pytest.raises(EngineStartError, match=told):
        await server.connect(LOGGER, library=LIBRARY)
    await asked(
        server, ("FUNCTION", "FLUSH"), ("FUNCTION", "LOAD", code.format("penstock_queue_1_1"))
    )
    for _ in range(2):
        await (await server.connect(LOGGER, library=LIBRARY)).disconnect()
    with Redis(port=private.port) as admin:
        assert len(admin.function_list()) == 2


async def test_what_survives_the_server_s_end_is_logged(
    private: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the append-only file that is a warning."""
    caplog.set_level(logging.INFO, "penstock.queue")
    server = RedisServer(port=private.port)
    await (await server.connect(LOGGER, library=LIBRARY)).disconnect()
    (settings, warning) = caplog.records
    assert "appendonly no; save ''; maxmemory" in settings.getMessage()
    assert warning.levelname == "WARNING"
    assert f"127.0.0.1:{private.port} has appendonly no" in warning.getMessage()
    await asked(server, ("CONFIG", "SET", "appendonly", "yes"))
    caplog.clear()
    await (await server.connect(LOGGER, library=LIBRARY)).disconnect()
    await asked(server, ("CONFIG", "SET", "appendonly", "no"))
    (settings,) = caplog.records
    assert "appendonly yes, appendfsync everysec" in settings.getMessage()


async def test_a_user_logs_in_with_the_password_of_a_file(
    private: RedisProcess, tmp_path: Path
) -> None:
    """A wrong password, a missing file and a user without rights are start errors."""
    admin = RedisServer(port=private.port)
    rights = "~penstock:* &* +@all -config"
    await asked(admin, ("ACL", "SETUSER", "broker", "on", ">secret", *rights.split()))
    await asked(admin, ("ACL", "SETUSER", "nobody", "on", ">secret"))
    file = tmp_path / "password"
    file.write_text("secret\n")
    server = RedisServer(port=private.port, login=Login("broker", str(file)))
    await (await server.connect(LOGGER, library=LIBRARY)).disconnect()
    with pytest.raises(EngineStartError, match="permission"):
        await RedisServer(port=private.port, login=Login("nobody", str(file))).connect(LOGGER)
    file.write_text("other\n")
    with pytest.raises(EngineStartError, match=f"Redis server 127.0.0.1:{private.port}: "):
        await server.connect(LOGGER, library=LIBRARY)
    file.unlink()
    with pytest.raises(EngineStartError, match="password of"):
        await server.connect(LOGGER, library=LIBRARY)


RIGHTS = (
    "~penstock:* &penstock:* -@all +@hash +@sortedset +fcall +function|list +function|load +publish"
    " +subscribe +unsubscribe +ping +info +time +exists +unlink +expire +wait +select"
    " +cluster|slots +config|get"
)
"""What a user needs at least, as docs/how-to/queue-on-redis.md says."""


def test_the_page_gives_the_rights_that_are_enough() -> None:
    """A user copies them."""
    page = Path(__file__).parents[5] / "docs" / "how-to" / "queue-on-redis.md"
    assert RIGHTS in " ".join(page.read_text().split())


def certified(tmp_path: Path) -> tuple[tuple[str, ...], Login]:
    """Return the lines of servers that speak TLS, and a login there."""
    authority = Authority(tmp_path)
    certfile, keyfile = authority.issue("localhost", "127.0.0.1")
    mine = authority.issue("client", file="client")
    file = tmp_path / "password"
    file.write_text("secret\n")
    lines = (
        f"tls-cert-file {certfile}",
        f"tls-key-file {keyfile}",
        f"tls-ca-cert-file {authority.cafile}",
    )
    login = Login("penstock", str(file), authority.cafile, mine.certfile, mine.keyfile)
    return lines, login


async def use_everything(server: RedisServer) -> None:
    """Call each function of the library, and hear of another program."""
    engines = [RedisEngine(server, logger=LOGGER) for _ in range(2)]
    for each in engines:
        await each.open()
    engine, other = engines
    group = GroupSpec(order="key", max_receives=1, dead_letter_queue="dead")
    await engine.create_queue("dead", QueueSpec())
    spec = QueueSpec(
        physical_queues=2,
        key="topic",
        keeps_last=True,
        retention_seconds=3600.0,
        groups={"g": group, "o": GroupSpec(kind="offsets")},
    )
    await engine.create_queue("q", spec)
    await other.maintain()
    seen = await other.wait_for_arrival("q", "g", -1, 0)
    waiting = asyncio.create_task(other.wait_for_arrival("q", "g", seen, UNTIL_SECONDS))
    new = [NewMessage(Message("a", b"1"), b"id"), NewMessage(Message("b", b"2"), delay_seconds=60)]
    for one in (*new, NewMessage(Message("c", b"3"))):
        assert engine.reserve("q", 1, 1)
        await engine.append("q", 0, [one])
    await waiting
    received = await engine.lease("q", "g", 0, 9, 1 << 20)
    handles = [one.receipt_handle for one in received]
    assert await engine.settle("q", "g", "extend", handles, 30.0) == {}
    assert await engine.settle("q", "g", "nack", handles) == {}
    assert await engine.lease("q", "g", 0, 9, 1 << 20) == []
    await engine.redrive("dead", None, None)
    first, position = await engine.locate("q", "earliest"), await engine.locate("q", "latest")
    assert await engine.read("q", 0, first.offsets[0], position.offsets[0], 9) != []
    await engine.commit("q", "o", position)
    await engine.seek("q", "g", "earliest")
    await engine.change_group("q", "g", GroupSpec())
    await engine.create_group("q", "new", GroupSpec(start=0.0))
    await engine.delete_group("q", "new")
    await engine.forget("q", [b"id"])
    await engine.maintain()
    await engine.purge("q")
    await engine.delete_queue("q")
    for each in engines:
        await each.close()


async def test_a_user_with_least_rights_can_do_everything_over_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On one server, with a sentinel, and on a cluster; nothing is refused on the way."""
    tls, login = certified(tmp_path)
    lines = (*tls, f"user penstock on >secret {RIGHTS}")
    with running_redis(tmp_path / "one", *lines, is_tls=True) as process:
        await use_everything(RedisServer(port=process.port, login=login))
        watcher = "user watcher on >secret +sentinel|get-master-addr-by-name"
        sentinel = (*tls, watcher, "tls-replication yes")
        with running_sentinels(
            tmp_path / "sentinels", process.port, *sentinel, n=1, is_tls=True
        ) as (port,):
            sentinels = RedisSentinels((("127.0.0.1", port),), "m", replace(login, user="watcher"))
            await use_everything(RedisServer(sentinels=sentinels, login=login))
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(3)]
        own = [(f"tls-port {port}", "tls-cluster yes") for port in ports]
        stack.enter_context(running_cluster(tmp_path / "cluster", *lines, own=own))
        nodes = (("127.0.0.1", ports[0]),)
        await use_everything(RedisServer(cluster=nodes, login=login))
    refusals = [one for one in caplog.messages if "permission" in one.lower() or "ACL" in one]
    assert refusals == []


async def test_no_server_is_a_start_error() -> None:
    """Its address is named."""
    with pytest.raises(EngineStartError, match="Redis server "):
        await RedisServer(port=1).connect(LOGGER)


async def test_tls_checks_the_server_s_certificate(tmp_path: Path) -> None:
    """With the client's own where the server asks for it; another authority's is refused."""
    authority = Authority(tmp_path)
    certfile, keyfile = authority.issue("localhost", "127.0.0.1")
    with running_redis(
        tmp_path / "redis",
        f"tls-cert-file {certfile}",
        f"tls-key-file {keyfile}",
        f"tls-ca-cert-file {authority.cafile}",
        is_tls=True,
    ) as process:
        mine = authority.issue("client", file="client")
        server = RedisServer(
            port=process.port,
            login=Login(
                tls_ca=authority.cafile, tls_certificate=mine.certfile, tls_key=mine.keyfile
            ),
        )
        await (await server.connect(LOGGER, library=LIBRARY)).disconnect()
        other = Authority(tmp_path, "other")
        for refused in (
            RedisServer(port=process.port, login=Login(tls_ca=other.cafile)),
            RedisServer(port=process.port, login=Login(tls_ca=authority.cafile)),
            RedisServer(port=process.port, login=Login(tls_ca=str(tmp_path / "missing.pem"))),
        ):
            with pytest.raises(EngineStartError, match=f"127.0.0.1:{process.port}") as told:
                await refused.connect(LOGGER)
            is_waited_for = refused.login.tls_ca != other.cafile
            assert isinstance(told.value, EngineAwayError) == is_waited_for


async def test_two_programs_may_load_the_library_at_once() -> None:
    """The slower one finds it there."""
    server = RedisServer(port=shared_redis())
    await asked(server, ("PING",))
    connections = await asyncio.gather(*(server.connect(LOGGER, library=LIBRARY) for _ in range(4)))
    for connection in connections:
        await connection.disconnect()
