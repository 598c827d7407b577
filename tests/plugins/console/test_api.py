from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
from yarl import URL

from penstock.broker.client_report import as_json
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.counters import Metric
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.operations_contract import ClientRow, Reloaded
from penstock.broker.reports.client_reports import report, subject_of
from penstock.plugins.console.api import ConsolePlugin
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.console.report_text import describe
from penstock.plugins.web.service import HttpStartError
from tests.helpers.process import SECONDS
from tests.helpers.virtual import VirtualBroker
from tests.plugins.console.running import console

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "reference" / "console-api.md"


async def get(plugin: ConsolePlugin, path: str) -> tuple[int, Any]:
    """Return status and JSON of an answer; the path is sent as it is."""
    url = URL(plugin.http_url + path, encoded=True)
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


def broker_of(*client_ids: str) -> VirtualBroker:
    """Return a broker with these clients."""
    broker = VirtualBroker()
    for client_id in client_ids:
        broker.connect(client_id)
    return broker


def told(broker: VirtualBroker, client_id: str) -> Any:
    """Return what is to be told of a client."""
    return as_json(report(subject_of(broker.session(client_id)), broker.now))


def report_in(found: Any) -> Any:
    """Return the report in an answer about a client, without what stands beside it."""
    return {key: found[key] for key in found.keys() - {"row", "why", "lately", "node"}}


@pytest.mark.parametrize("client_id", [".", "..", "-"])
async def test_a_name_that_browsers_take_for_the_way_up_stands_in_the_query(client_id: str) -> None:
    """No client keeps itself from being seen by its name."""
    async with console(broker_of(client_id, "other")) as plugin:
        status, found = await get(plugin, f"/api/clients/-?named={client_id}")
        assert (status, found["client_id"]) == (200, client_id)
        assert (await get(plugin, "/api/clients/-?named=unknown"))[0] == 404


async def test_every_request_is_documented() -> None:
    """docs/reference/console-api.md names each method and path that is served, and no other.

    Those of the page stand elsewhere.
    """
    documented = set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^`?]*)", DOCUMENTATION.read_text()))
    async with console(broker_of()) as plugin:
        routes = list(plugin._application.router.routes())
    assert documented == {
        (route.method, route.resource.canonical)
        for route in routes
        if route.method != "HEAD"
        and route.resource is not None
        and route.resource.canonical not in ("/", "/assets/{name}")
    }


async def test_one_client_is_told_as_it_is_now() -> None:
    """The answer is the report of this moment, connected or not."""
    broker = VirtualBroker()
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 9})
    client.subscribe("t", 1)
    async with console(broker) as plugin:
        status, found = await get(plugin, "/api/clients/s")
        assert (status, report_in(found)) == (200, told(broker, "s"))
        assert (found["row"]["client_id"], found["why"]) == ("s", describe(found))
        client.lose()
        broker.connect("p").publish("t", b"x", qos=1)
        status, found = await get(plugin, "/api/clients/s")
    assert (status, report_in(found)) == (200, told(broker, "s"))
    assert (found["is_connected"], found["ledger"]["queued"]) == (False, 1)


@pytest.mark.parametrize(
    "client_id",
    [
        *("a/b", "a+b", "#", "a b", "ä€😀", "50%", "a%2Fb", "?x=1", "tab\tnew\n", "a;b&c", ".."),
        pytest.param("€" * 21_845, id="as long as there is"),
    ],
)
async def test_a_client_id_of_any_characters_can_be_asked_for(client_id: str) -> None:
    """Percent-encoded, an id is one level of the path, whatever is in it."""
    broker = broker_of(client_id)
    async with console(broker) as plugin:
        status, found = await get(plugin, f"/api/clients/{quote(client_id, safe='')}")
    assert (status, found["client_id"]) == (200, client_id)


async def test_a_client_that_is_not_there_is_told() -> None:
    """What was read and what is allowed, with status 404; a long id is cut."""
    async with console(broker_of("s")) as plugin:
        status, found = await get(plugin, "/api/clients/t")
        _, of_long = await get(plugin, f"/api/clients/{'x' * 1000}")
    assert status == 404
    allowed = "a client that has a session, or one of the last that have gone"
    assert found == {"error": f'client: read "t"; allowed: {allowed}'}
    assert len(of_long["error"]) < 200


async def test_a_broker_has_no_state_of_a_proxy() -> None:
    """The answer says where there is one."""
    async with console(VirtualBroker()) as plugin:
        status, answer = await get(plugin, "/api/proxy")
    assert status == 404
    assert answer == {"error": "proxy: this is a broker; allowed: the console of an edge proxy"}


async def test_all_clients_come_page_by_page() -> None:
    """Each once and in order, whatever connects or ends in between."""
    client_ids = [f"client-{n:04}" for n in range(2_500)]
    broker = broker_of(*reversed(client_ids))
    found: list[str] = []
    async with console(broker) as plugin:
        after = ""
        while True:
            status, page = await get(plugin, f"/api/clients?limit=1000&after={after}")
            assert status == 200
            found += [client["client_id"] for client in page["clients"]]
            if page["next"] is None:
                break
            after = page["next"]
            broker.connect("a-new-one-before")
            broker.core.sessions.end(broker.session("client-0007"), broker.now)
            broker.connect("client-0007")
    assert found == client_ids


async def test_the_longest_client_id_does_not_keep_others_from_being_listed() -> None:
    """What `next` says can be asked for, whatever a client has for an id."""
    longest = "b" + "€" * 21_844
    async with console(broker_of("a", longest, "ü")) as plugin:
        _, page = await get(plugin, "/api/clients?limit=2")
        assert page["next"] == longest
        status, page = await get(plugin, f"/api/clients?limit=2&after={quote(longest, safe='')}")
    assert (status, [client["client_id"] for client in page["clients"]]) == (200, ["ü"])


async def test_a_page_has_a_hundred_clients_if_nothing_is_said() -> None:
    """Few enough for a screen."""
    broker = broker_of(*(f"c{n:03}" for n in range(101)))
    async with console(broker) as plugin:
        _, page = await get(plugin, "/api/clients")
        _, rest = await get(plugin, f"/api/clients?after={page['next']}")
    assert (len(page["clients"]), page["next"]) == (100, "c099")
    assert [client["client_id"] for client in rest["clients"]] == ["c100"]
    assert page["clients"][0]["client_id"] == "c000"
    assert page["total"] == 101


@pytest.mark.parametrize("limit", ["0", "1001", "ten", "1.5", "", "-1"])
async def test_a_wrong_limit_is_told(limit: str) -> None:
    """What was read and what is allowed."""
    async with console(broker_of()) as plugin:
        status, found = await get(plugin, f"/api/clients?limit={limit}")
    assert status == 400
    assert found == {"error": f'limit: read "{limit}"; allowed: 1 to 1000'}


async def test_others_have_their_turns_while_all_clients_are_told() -> None:
    """A page of 1,000 is made a few at a time, between which the broker serves."""
    broker = broker_of(*(f"c{n:03}" for n in range(1_000)))
    n_turns = 0

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    async with console(broker) as plugin:
        counting = asyncio.create_task(count())
        _, page = await get(plugin, "/api/clients?limit=1000")
        counting.cancel()
    assert len(page["clients"]) == 1_000
    assert n_turns > 20


async def test_a_client_that_ends_while_the_page_is_made_is_left_out() -> None:
    """Its session may be gone when its turn comes."""
    broker = broker_of("a", "b")

    class EndingReports(BrokerOperations):
        """Names a client that is gone when it is asked for."""

        def row(self, client_id: str) -> ClientRow | None:
            """End the first."""
            if client_id == "a":
                broker.core.sessions.end(broker.session("a"), broker.now)
            return super().row(client_id)

    async with console(broker, EndingReports) as plugin:
        _, page = await get(plugin, "/api/clients")
    assert [client["client_id"] for client in page["clients"]] == ["b"]


async def test_an_address_that_is_taken_is_told() -> None:
    """The second console on one port ends its broker's start."""
    broker = broker_of()
    async with console(broker) as plugin:
        bind = plugin.http_url.removeprefix("http://")
        second = ConsolePlugin(ConsoleConfig(http=bind), plugin.context)
        with pytest.raises(HttpStartError, match=f"plugins.console.http: read {bind}"):
            await second.start()


TOKEN = "a-token-of-the-console"


def context_of(broker: VirtualBroker) -> PluginContext:
    """Return what the plugin is given."""
    reports = BrokerOperations(lambda: broker.now)
    reports.attach(broker.core)
    return PluginContext(logging.getLogger("test"), "policy.yaml", lambda: 0.0, (), reports)


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "console.example:80"])
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "plugins.console.http: read {bind}; allowed: an address of this machine"),
        ({"admins": ("a",)}, "plugins.console.http: read {bind}, and no http_tls; allowed: an"),
        (
            {"token_file": "t", "anonymous": "viewer", "without_tls": True},
            "plugins.console.anonymous: read viewer; allowed: none; or http with an address of",
        ),
    ],
)
def test_other_machines_need_a_login_and_tls(bind: str, keys: dict[str, Any], told: str) -> None:
    """The API names clients, users and topics, and changes them."""
    with pytest.raises(ConfigError) as raised:
        ConsolePlugin(ConsoleConfig(http=bind, **keys), context_of(broker_of()))
    assert str(raised.value).startswith(f"policy.yaml: {told.format(bind=bind)}")


async def test_users_need_a_plugin_that_knows_passwords() -> None:
    """Otherwise nobody could log in, and nobody would notice."""
    plugin = ConsolePlugin(
        ConsoleConfig(http="127.0.0.1:0", viewers=("a",)), context_of(broker_of())
    )
    with pytest.raises(
        ConfigError, match=r"plugins\.console\.viewers: read users; allowed: those of"
    ):
        await plugin.start()
    await plugin.close()


async def test_metrics_with_one_name_end_the_start() -> None:
    """Both are named, before a scrape shows one of them for the other."""

    class TwoPlugins(BrokerOperations):
        """Has the metrics of two plugins with one name."""

        async def metrics(self) -> list[Metric]:
            """Return them."""
            return [
                Metric("x_messages", "gauge", "Messages of one.", []),
                Metric("x_messages", "gauge", "Messages of another.", []),
            ]

    async with console(broker_of(), TwoPlugins) as plugin:
        with pytest.raises(ConfigError, match=r"x_messages beside x_messages \(Messages of one"):
            await plugin.restored()


async def test_with_a_token_other_machines_are_answered(tmp_path: Path) -> None:
    """Nobody else is, whichever path is asked for; SIGHUP takes another token."""
    file = tmp_path / "token"
    file.write_text(f"me viewer {TOKEN}\n")
    config = ConsoleConfig(http="0.0.0.0:0", token_file=str(file), without_tls=True)
    plugin = ConsolePlugin(config, context_of(broker_of("a")))
    await plugin.start()
    try:
        url = URL(plugin.http_url).with_host("127.0.0.1")

        async def status(path: str, token: str | None, host: str = "console.example") -> int:
            headers = {"Host": host} | ({} if token is None else {"Authorization": token})
            async with (
                aiohttp.ClientSession() as session,
                session.get(url.with_path(path), headers=headers) as answer,
            ):
                assert (answer.headers.get("WWW-Authenticate") == "Bearer") == (
                    answer.status == 401
                )
                return answer.status

        for path in ("/api/clients", "/api/clients/a", "/nowhere"):
            for wrong in (None, "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe4"):
                assert await status(path, wrong) == 401
        assert await status("/api/clients/a", f"bearer  {TOKEN} ") == 200
        assert await status("/nowhere", f"Bearer {TOKEN}") == 404
        file.write_text("me viewer another-token-of-it")
        found = await plugin.reload(plugin.config)
        found.apply()
        assert found.read == [f"token_file {file}"]
        assert await status("/api/clients/a", f"Bearer {TOKEN}") == 401
        file.write_text("me viewer short")
        with pytest.raises(ConfigError, match="allowed: 16 printable"):
            await plugin.reload(plugin.config)
        assert await status("/api/clients/a", "Bearer another-token-of-it") == 200
    finally:
        await plugin.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"plugins\.console\.token_file: read .*: No such file"),
        ("a viewer " + "é" * 20, r"token: line 1: read another token"),
    ],
)
async def test_a_file_without_a_token_ends_the_start(
    text: str | None, told: str, tmp_path: Path
) -> None:
    """It is no part of the error."""
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    plugin = ConsolePlugin(ConsoleConfig(token_file=str(file)), context_of(broker_of()))
    with pytest.raises(ConfigError, match=told):
        await plugin.start()
    await plugin.close()


def test_without_keys_it_is_for_this_machine_alone() -> None:
    """The API asks for no password, so others must be let in on purpose."""
    assert validate_config(ConsoleConfig, {}, "policy.yaml", "plugins.console").http == (
        "127.0.0.1:8081"
    )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"http": "8081"}, "plugins.console.http: read '8081'; allowed: HOST:PORT, with a port"),
        ({"http": "here:99999"}, "plugins.console.http: read 'here:99999'"),
        ({"http": None}, "plugins.console.http: read null"),
        ({"htp": "127.0.0.1:1"}, "plugins.console.htp: read an unknown key"),
        ({"admins": ["a"], "viewers": ["a"]}, "read a under admins and viewers; allowed: one"),
        ({"anonymous": "root"}, "plugins.console.anonymous: read 'root'; allowed: 'none', 'view"),
    ],
)
def test_wrong_keys_and_values_are_told(keys: dict[str, Any], told: str) -> None:
    """A mistake names the key, what was read and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        validate_config(ConsoleConfig, keys, "policy.yaml", "plugins.console")
    assert told in str(raised.value)


async def test_a_change_is_made_as_a_whole_even_if_its_client_leaves() -> None:
    """As a command that is interrupted: half a reload would leave what was withdrawn in force."""
    has_begun, goes_on, is_done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(BrokerOperations):
        async def reload(self) -> Reloaded:
            has_begun.set()
            await goes_on.wait()
            is_done.set()
            return Reloaded()

    async with console(VirtualBroker(), Slow, anonymous="admin") as plugin:
        parts = urlsplit(plugin.http_url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"POST /api/reload HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        await has_begun.wait()
        writer.transport.abort()
        async with aiohttp.ClientSession() as session:  # by now, the server knows
            await session.get(f"{plugin.http_url}/healthz")
        goes_on.set()
        await asyncio.wait_for(is_done.wait(), SECONDS)
