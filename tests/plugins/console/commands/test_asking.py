"""Where a command finds the console, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.certificates import Authority
from tests.helpers.commands import Done, penstock
from tests.helpers.process import anonymous_policy, running_broker
from tests.plugins.console.commands.conftest import ADMIN, Operated


def contexts(folder: Path, text: str, *arguments: str, chosen: str = "") -> Done:
    """Run a command with a file of contexts."""
    (folder / "penstock").mkdir(exist_ok=True)
    (folder / "penstock" / "contexts.yaml").write_text(text)
    environment = {"XDG_CONFIG_HOME": str(folder), "PENSTOCK_CONTEXT": chosen}
    return penstock(*arguments, environment=environment)


def test_a_context_stands_for_address_and_token(operated: Operated, tmp_path: Path) -> None:
    """By its name, or by the environment; its files are beside it."""
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "ada.token").write_text(ADMIN)
    text = f"lab: {{url: '{operated.broker.console_url}', token_file: ada.token}}\n"
    level = ("log", "level", "--json")
    for done in (
        contexts(tmp_path, text, *level, "--context", "lab"),
        contexts(tmp_path, text, *level, chosen="lab"),
    ):
        assert done.json == {"level": "info"}
    # An address that is given does not get the token of the context.
    done = contexts(tmp_path, text, *level, "--url", operated.broker.console_url, chosen="lab")
    assert (done.status, "401" in done.err) == (2, True)
    done = contexts(tmp_path, text, *level, "--url", "http://127.0.0.1:1", "--context", "lab")
    assert done.err == ("penstock log: --url: read --url and --context; allowed: one of them\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lab: {url: 'http://127.0.0.1:1'}", "--context: read 'lob'; allowed by "),
        ("", "none, as the file is empty"),
        ("lob: {url: 'http://x', urk: x}", "lob.urk: read an unknown key; allowed: "),
        ("lob: http://here", "lob: read 'http://here'; allowed: url, token_file"),
        ("lob: {url: 7}", "lob.url: read 7; allowed: "),
        ("lob: [", "contexts.yaml: line 1"),
    ],
)
def test_a_wrong_context_is_told(text: str, told: str, tmp_path: Path) -> None:
    """With the file and the place in it; status 2."""
    done = contexts(tmp_path, text, "client", "ls", "--context", "lob")
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_token_and_a_viewers_action_are_told(operated: Operated, tmp_path: Path) -> None:
    """In the console's words, in one line; status 2."""
    wrong = tmp_path / "wrong.token"
    wrong.write_text("a-token-of-nobody")
    url = ("--url", operated.broker.console_url)
    for token, told in (
        (wrong, "401: Authorization: read another token; "),
        (operated.folder / "viewer.token", "403: vic: read role viewer; "),
    ):
        done = penstock("client", "kick", "x", *url, "--token-file", str(token))
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith(f"penstock client: {operated.broker.console_url}: {told}")
        assert done.err.count("\n") == 1
    # Who gives none is told how to.
    assert "--token-file FILE" in penstock("client", "kick", "x", *url).err
    # The console's own file of tokens does, too.
    tokens = str(operated.folder / "console.tokens")
    assert "one line" in penstock("log", "level", *url, "--token-file", tokens).err
    (tmp_path / "console.tokens").write_text(f"ada admin {ADMIN}\n")
    done = penstock("log", "level", *url, "--token-file", str(tmp_path / "console.tokens"))
    assert done.out == "info\n"


def test_a_console_that_does_not_answer_is_told() -> None:
    """In one line; status 2."""
    with reserved_port() as port:
        for command in (["client", "ls"], ["top", "--once"], ["client", "trace", "x"]):
            done = penstock(*command, "--url", f"http://127.0.0.1:{port}")
            assert (done.status, done.out) == (2, "")
            assert f"http://127.0.0.1:{port}: no answer (Connection refused)" in done.err
            assert done.err.count("\n") == 1


def test_a_console_with_tls_is_asked_by_its_authority(tmp_path: Path) -> None:
    """Another one is refused."""
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    files = own.issue("127.0.0.1")
    tls = {"certificate": files.certfile, "key": files.keyfile}
    plugins = {"console": {"http": "127.0.0.1:0", "http_tls": tls}}
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        url = ("--url", broker.wait_for_match(r"console API listens on (https://\S+)")[1])
        assert penstock("log", "level", *url, "--ca-file", own.cafile).out == "info\n"
        done = penstock("log", "level", *url, "--ca-file", other.cafile)
        assert (done.status, "certificate verify failed" in done.err) == (2, True)
        done = penstock("log", "level", *url, "--ca-file", str(tmp_path / "none"))
        assert (done.status, "none cannot be used" in done.err) == (2, True)


def test_queues_are_asked_by_a_context_too(tmp_path: Path) -> None:
    """The console of a remote broker serves them."""
    plugins = {
        "console": {"http": "127.0.0.1:0", "anonymous": "admin"},
        "queue": {"engine": "memory", "http": None, "queues": {"jobs": {"topics": ["jobs/#"]}}},
    }
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        text = f"lab: {{url: '{broker.console_url}'}}\n"
        done = contexts(tmp_path, text, "queue", "stats", "--context", "lab")
        assert (done.status, "jobs" in done.out) == (0, True), done.err
        done = contexts(tmp_path, text, "queue", "purge", "jobs", "--yes", chosen="lab")
        assert done.out == "0 messages removed\n", done.err


def test_a_group_without_a_command_shows_its_commands() -> None:
    """In the words of its help."""
    for group in ("client", "queue"):
        done = penstock(group)
        assert done.status == 2
        assert done.out + done.err == penstock(group, "--help").out
