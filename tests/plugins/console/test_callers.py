from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml

from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.errors import ConfigError
from penstock.plugins.access.control import MAX_COST_AT_ONCE
from penstock.plugins.access.password_hash import make_hash
from penstock.plugins.console.api import ConsolePlugin
from penstock.plugins.console.callers import IDLE_SECONDS, LONGEST_SECONDS, read_tokens
from penstock.plugins.queue.plugin import QueuePlugin
from penstock.plugins.queue.standalone_server import StandaloneServer, load_server
from tests.helpers.certificates import Authority
from tests.helpers.process import ROOT

TOKENS = """
# name role token
prometheus viewer  a-token-of-a-viewer
deploy     admin   a-token-of-an-admin
"""

VIEWER, ADMIN = "Bearer a-token-of-a-viewer", "Bearer a-token-of-an-admin"


class Answer(NamedTuple):
    """An answer of the console."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Browser:
    """A client of the console that keeps cookies, as a browser does."""

    def __init__(self, plugin: ConsolePlugin) -> None:
        self.url = plugin.http_url
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; ``_`` in the name of a header stands for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, self.url + path, json=body, headers=named
        ) as answer:
            return Answer(answer.status, await answer.json(), answer.headers)

    async def login(self, username: str, password: str) -> Answer:
        """Log in."""
        return await self.ask("POST", "/api/login", {"username": username, "password": password})


class Running(NamedTuple):
    """A console with what a test needs of it."""

    plugin: ConsolePlugin
    browser: Browser
    server: StandaloneServer


def user_line(name: str, password: str) -> str:
    """Return the line of a user in a password file, which is verified in a thread."""
    return f"{name}:{make_hash(password.encode(), bytes(12), MAX_COST_AT_ONCE + 1)}"


@asynccontextmanager
async def running(folder: Path, **keys: Any) -> AsyncIterator[Running]:
    """Run the console beside a queue in memory and the users alice and bob."""
    users = [user_line(name, f"{name} secret") for name in ("alice", "bob", "eve")]
    (folder / "users").write_text("\n".join(users))
    (folder / "tokens").write_text(TOKENS)
    policy = {
        "plugins": {
            "console": {"http": "127.0.0.1:0"} | keys,
            "queue": {"engine": "memory", "http": None, "queues": {"work": {"topics": ["a"]}}},
            "access": {"password_file": str(folder / "users")},
        }
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    server = load_server(str(folder / "policy.yaml"), logging.getLogger("penstock.queue"))
    await server.start()
    plugin = next(one for one in server._plugins.plugins if isinstance(one, ConsolePlugin))
    browser = Browser(plugin)
    try:
        yield Running(plugin, browser, server)
    finally:
        await browser.session.close()
        await server.stop()


USERS = {"admins": ["alice"], "viewers": ["bob"]}

PURGE = "/api/queues/work/purge"


async def test_a_user_logs_in_and_acts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the password of the plugin access; the log has a line for the login and for the change."""
    caplog.set_level(logging.INFO)
    async with running(tmp_path, **USERS) as (_, browser, _server):
        nobody = await browser.ask("GET", "/api/me")
        assert nobody.body == {"user": "", "role": None, "csrf": None, "logins": ["password"]}
        assert (await browser.ask("GET", "/api/queues")).status == 401
        told = await browser.login("alice", "alice secret")
        assert (told.status, told.body["user"], told.body["role"]) == (200, "alice", "admin")
        me = (await browser.ask("GET", "/api/me")).body
        assert (me["csrf"], me["kind"], me["has"]) == (told.body["csrf"], "queue", ["queues"])
        cookie = told.headers["Set-Cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert cookie.startswith(f"penstock-console-{browser.url.rpartition(':')[2]}=")
        purged = await browser.ask("POST", PURGE, {}, X_CSRF_Token=me["csrf"])
        assert (purged.status, purged.body) == (200, {"removed": 0})
        await browser.ask("POST", "/api/logout", {}, X_CSRF_Token=me["csrf"])
        assert (await browser.ask("GET", "/api/queues")).status == 401
    lines = [line for line in caplog.messages if line.startswith("audit:")]
    assert lines == [
        "audit: user alice from 127.0.0.1: login: role admin",
        f"audit: user alice from 127.0.0.1: POST {PURGE}: 200",
        "audit: user alice from 127.0.0.1: logout: 200",
    ]


async def test_a_change_needs_the_role_and_the_csrf_token(tmp_path: Path) -> None:
    """A viewer reads; a page that has the cookie without the token changes nothing."""
    async with running(tmp_path, **USERS) as (_, browser, _server):
        csrf = (await browser.login("bob", "bob secret")).body["csrf"]
        assert (await browser.ask("GET", "/api/queues")).status == 200
        refused = await browser.ask("POST", PURGE, {}, X_CSRF_Token=csrf)
        assert refused.status == 403
        assert refused.body == {
            "error": "bob: read role viewer; allowed: role admin, as this changes something"
        }
        await browser.login("alice", "alice secret")
        for wrong in ({}, {"X_CSRF_Token": csrf}, {"X_CSRF_Token": "ä"}):
            refused = await browser.ask("POST", PURGE, {}, **wrong)
            assert (refused.status, refused.body["error"][:12]) == (403, "X-CSRF-Token")
        assert (await browser.ask("POST", "/api/logout", {})).status == 403


async def test_wrong_logins_are_refused_and_slowed_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without a role, an unknown one, a wrong password; too many of them have to wait."""
    caplog.set_level(logging.INFO)
    async with running(tmp_path, **USERS) as (_, browser, _server):
        assert (await browser.login("eve", "eve secret")).status == 403
        assert (await browser.login("nobody", "x")).status == 401
        for n in range(5):
            assert (await browser.login("alice", f"guess {n}")).status == 401
        slowed = await browser.login("alice", "guess 5")
        assert (slowed.status, slowed.headers["Retry-After"].isdigit()) == (429, True)
        assert (await browser.login("alice", "alice secret")).status == 429
        assert (await browser.login("bob", "bob secret")).status == 200
    assert "audit: user alice from 127.0.0.1: login: 401: wrong" in caplog.messages
    assert "guess" not in caplog.text
    audited = [record for record in caplog.records if record.msg.startswith("audit:")]
    assert [vars(record)["outcome"] for record in audited if vars(record)["is_unlimited"]] == [
        "role viewer"
    ]


async def test_a_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    """JSON may have half a surrogate pair; anybody may send one without login."""
    async with running(tmp_path, **USERS) as (_, browser, _server):
        for body in ({"username": "\ud800", "password": "x"}, {"token": "\udfff"}):
            refused = await browser.ask("POST", "/api/login", body)
            assert (refused.status, refused.body["error"][:18]) == (400, "body: read no JSON")


async def test_with_tls_the_cookie_is_for_this_host_and_tls_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A browser takes a name with __Host- only with these attributes, and from no other host."""
    authority = Authority(tmp_path)
    files = authority.issue("localhost")
    tls = {"certificate": files.certfile, "key": files.keyfile}
    async with running(tmp_path, **USERS, http_tls=tls) as (plugin, _browser, _server):
        assert plugin.http_url.startswith("https://127.0.0.1:")
        url = plugin.http_url.replace("127.0.0.1", "localhost")
        body = {"username": "alice", "password": "alice secret"}
        connector = aiohttp.TCPConnector(ssl=authority.client_context())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"{url}/api/login", json=body, headers={"Origin": url}) as answer,
        ):
            cookie = answer.headers["Set-Cookie"]
            assert (answer.status, cookie.startswith("__Host-penstock")) == (200, True)
            assert "Secure" in cookie
            assert "Domain" not in cookie
    assert "audit: user alice from 127.0.0.1: login: role admin" in caplog.messages


async def test_the_users_of_a_listener_are_not_those_of_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else may have an admin's name there. Whom the file names is told; others are not."""
    caplog.set_level(logging.INFO)
    async with running(tmp_path, admins=["alice", "carol"]) as (_, browser, server):
        policy = yaml.safe_load((tmp_path / "policy.yaml").read_text())
        policy["listeners"] = {"default": {"bind": "127.0.0.1:0"}, "site": {"bind": "127.0.0.1:0"}}
        (tmp_path / "site").write_text("\n".join(user_line(n, "site") for n in ("alice", "carol")))
        site = {"password_file": str(tmp_path / "site")}
        policy["plugins"]["access"]["listeners"] = {"site": site}
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
        assert not (await server.reload()).failed
        assert (
            (await browser.login("alice", "site")).body["error"].startswith("login: read a wrong")
        )
        refused = await browser.login("carol", "site")
        assert refused.status == 403
        told = "no password in plugins.access.password_file; allowed: its users, as those of a list"
        assert refused.body["error"].startswith(f'user "carol": read {told}')
        assert (await browser.login("mallory", "x")).body == (await browser.login("bob", "x")).body
    assert any(
        f"audit: user carol from 127.0.0.1: login: 403: {told}" in m for m in caplog.messages
    )


@pytest.mark.parametrize(
    "body", [{}, {"username": "alice"}, {"token": 5}, {"username": "a", "password": None}, [1]]
)
async def test_a_login_without_words_is_told(body: Any, tmp_path: Path) -> None:
    """What a login may have."""
    async with running(tmp_path, **USERS) as (_, browser, _server):
        assert (await browser.ask("POST", "/api/login", body)).status == 400


async def test_tokens_have_their_roles(tmp_path: Path) -> None:
    """With a bearer token no CSRF token is needed; one that is not known has no role."""
    async with running(tmp_path, token_file=str(tmp_path / "tokens")) as (_, browser, server):
        for wrong in ("Bearer", "Bearer x", "Basic a-token-of-an-admin", "Bearer \u00e4"):
            refused = await browser.ask("GET", "/metrics", Authorization=wrong)
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await browser.ask("GET", "/api/queues", Authorization=VIEWER)).status == 200
        assert (await browser.ask("POST", PURGE, {}, Authorization=VIEWER)).status == 403
        assert (await browser.ask("POST", PURGE, {}, Authorization=ADMIN)).status == 200
        told = await browser.ask("POST", "/api/login", {"token": "a-token-of-an-admin"})
        assert told.body["user"] == "deploy"
        assert (await browser.ask("GET", "/api/me")).body["role"] == "admin"
        (tmp_path / "tokens").write_text("prometheus viewer a-token-of-a-viewer")
        await server.reload()
        assert (await browser.ask("GET", "/api/me")).body["role"] is None


async def test_on_this_machine_reading_is_free_until_there_are_logins(tmp_path: Path) -> None:
    """Acting needs a login or `anonymous: admin`."""
    async with running(tmp_path) as (_, browser, _server):
        assert (await browser.ask("GET", "/api/queues")).status == 200
        assert (await browser.ask("POST", PURGE, {})).status == 401
    async with running(tmp_path, anonymous="admin") as (_, browser, _server):
        assert (await browser.ask("POST", PURGE, {})).status == 200
    async with running(tmp_path, **USERS, anonymous="viewer") as (_, browser, _server):
        assert (await browser.ask("GET", "/api/queues")).status == 200
        assert (await browser.ask("POST", PURGE, {})).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
        {"Host": "evil.example"},
        {"Host": "console.example.evil.example:80"},
    ],
)
async def test_a_page_of_another_site_reaches_nothing(
    headers: Mapping[str, str], tmp_path: Path
) -> None:
    """Neither by a request of its own, nor by a name that stands for this machine (rebinding)."""
    keys = {"anonymous": "admin", "names": ["console.example"]}
    async with running(tmp_path, **keys) as (_, browser, _server):
        for method, path in (("GET", "/api/queues"), ("POST", PURGE), ("POST", "/api/login")):
            answer = await browser.ask(method, path, {}, **headers)
            assert (answer.status, "read" in answer.body["error"]) == (403, True)
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_its_own_page_and_a_proxy_before_it_are_let_in(tmp_path: Path) -> None:
    """The origin is that of the Host, or a name in the policy file."""
    async with running(tmp_path, anonymous="admin", names=["Console.example"]) as running_one:
        browser = running_one.browser
        own = {"Origin": browser.url, "Sec_Fetch_Site": "same-origin"}
        proxied = {"Host": "console.example", "Origin": "https://console.example"}
        for headers in (own, proxied):
            assert (await browser.ask("POST", PURGE, {}, **headers)).status == 200


async def test_a_program_without_a_broker_has_metrics_and_health(tmp_path: Path) -> None:
    """Those of its queues and of its process; what it does not have is told."""
    async with running(tmp_path) as (_, browser, _server):
        async with browser.session.get(f"{browser.url}/metrics") as answer:
            text = await answer.text()
        assert 'penstock_queue_depth_messages{queue="work"} 0.0' in text
        assert "penstock_build_info{" in text
        assert (await browser.ask("GET", "/readyz")).body == {"status": "ready"}
        overview = (await browser.ask("GET", "/api/overview")).body
        assert [queue["name"] for queue in overview["queues"]] == ["work"]
        assert (await browser.ask("GET", "/api/clients")).status == 404


async def test_why_it_is_not_ready_is_for_who_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe without login gets the names; a reason may have an address or a path."""

    async def problem(_: QueuePlugin) -> str:
        return "10.0.0.5:6379 does not answer"

    monkeypatch.setattr(QueuePlugin, "problem", problem)
    async with running(tmp_path, **USERS) as (_, browser, _server):
        for headers in ({}, {"Authorization": "Bearer of-somebody-else"}):
            answer = await browser.ask("GET", "/readyz", **headers)
            told = {"queue": "a login or a token shows why"}
            assert (answer.status, answer.body["problems"]) == (503, told)
        await browser.login("bob", "bob secret")
        answer = await browser.ask("GET", "/readyz")
        assert (answer.status, answer.body["problems"]) == (
            503,
            {"queue": "10.0.0.5:6379 does not answer"},
        )


async def test_sessions_end(tmp_path: Path) -> None:
    """After an hour without a request, after 12 hours, and with the password that began them."""
    async with running(tmp_path, **USERS) as (plugin, browser, server):
        callers = plugin._callers
        now = callers._clock()
        callers._clock = lambda: now

        async def is_in() -> bool:
            return (await browser.ask("GET", "/api/queues")).status == 200

        for password, steps in (("bob secret", (IDLE_SECONDS + 1,)), ("bob secret", ())):
            await browser.login("bob", password)
            for step in steps:
                assert await is_in()
                now += step
                assert not await is_in()
        n_requests = 0
        while await is_in():
            now += IDLE_SECONDS - 1
            n_requests += 1
        assert (n_requests - 1) * (IDLE_SECONDS - 1) < LONGEST_SECONDS
        await browser.login("bob", "bob secret")
        (tmp_path / "users").write_text(user_line("bob", "another one"))
        await server.reload()
        assert not await is_in()
        assert (await browser.login("bob", "bob secret")).status == 401


async def test_roles_follow_the_policy_file(tmp_path: Path) -> None:
    """A reload takes a role away at once; a file that would open the console changes nothing."""
    file = tmp_path / "policy.yaml"
    async with running(tmp_path, **USERS) as (_, browser, server):
        csrf = (await browser.login("alice", "alice secret")).body["csrf"]
        policy = yaml.safe_load(file.read_text())
        policy["plugins"]["console"] |= {"admins": ["bob"], "viewers": ["alice"]}
        file.write_text(yaml.safe_dump(policy))
        done = await server.reload()
        assert done.changed == ["plugins.console.admins", "plugins.console.viewers"]
        assert (await browser.ask("GET", "/api/me")).body["role"] == "viewer"
        assert (await browser.ask("POST", PURGE, {}, X_CSRF_Token=csrf)).status == 403
        policy["plugins"]["console"] |= {"admins": ["alice"]}
        file.write_text(yaml.safe_dump(policy))
        assert "read alice under admins and viewers" in str((await server.reload()).failed)
        policy["plugins"]["console"] |= {"viewers": [], "http": "0.0.0.0:0"}
        file.write_text(yaml.safe_dump(policy))
        assert "0.0.0.0:0, and no http_tls" in str((await server.reload()).failed)
        assert (await browser.ask("GET", "/api/me")).body["role"] == "viewer"


async def test_each_answer_has_the_headers_that_browsers_obey(tmp_path: Path) -> None:
    """Also errors, answers of mounted routes and the page."""
    async with running(tmp_path) as (_, browser, _server):
        for path in ("/", "/api/me", "/api/queues", "/nowhere", "/assets/nothing.js"):
            async with browser.session.get(browser.url + path) as answer:
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                expected = "no-cache" if path == "/" else "no-store"
                assert answer.headers["Cache-Control"] == expected


async def test_the_page_comes_from_memory_and_is_asked_for_once(tmp_path: Path) -> None:
    """Compressed where the browser can, with an ETag by which it is not sent again."""
    async with running(tmp_path, **USERS) as (_, browser, _server):
        async with browser.session.get(browser.url + "/") as answer:
            text = await answer.text()
            etag = answer.headers["ETag"]
            assert answer.headers["Content-Encoding"] == "gzip"
        assert text.startswith("<!doctype html>")
        for path in ("/assets/app.js", "/assets/style.css"):
            async with browser.session.get(browser.url + path) as answer:
                assert answer.status == 200
        again = {"If-None-Match": etag}
        async with browser.session.get(browser.url + "/", headers=again) as answer:
            assert (answer.status, await answer.read()) == (304, b"")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "token_file: read no line; allowed: NAME ROLE TOKEN"),
        ("a-token-of-an-admin", "line 1: read 1 fields; allowed: three: NAME ROLE TOKEN"),
        ("a root a-token-of-an-admin", 'line 1: read role "root"; allowed: viewer or admin'),
        ("a admin short", "line 1: read another token; allowed: 16 printable"),
        ("a admin aaaaaaaaaaaaaaaa\na viewer bbbbbbbbbbbbbbbb", "line 2: read a again"),
        ("a admin aaaaaaaaaaaaaaaa\nb viewer aaaaaaaaaaaaaaaa", "line 2: read the token of a"),
    ],
)
def test_a_wrong_file_of_tokens_is_told(text: str, told: str, tmp_path: Path) -> None:
    """The line and what is allowed; no part of a token."""
    (tmp_path / "tokens").write_text(text)
    named_by = NamedBy("policy.yaml", "plugins.console.token_file")
    with pytest.raises(ConfigError) as raised:
        read_tokens(str(tmp_path / "tokens"), named_by)
    assert told in str(raised.value)
    assert "aaaa" not in str(raised.value)


def test_an_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    """With status 2 and the key, as each mistake in a policy file."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        queue = {"engine": "memory", "http": "127.0.0.1:0"}
        policy = {"plugins": {"console": {"http": bind}, "queue": queue}}
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
        command = [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env
        )
    assert done.returncode == 2
    assert f"plugins.console.http: read {bind}; allowed: an address of this" in done.stderr
