from __future__ import annotations

import getpass
import random
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.errors import ConfigError
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.sessions.broker_state import Core
from penstock.plugins.access import acl
from penstock.plugins.access.acl import DENY, READ, WRITE, AccessList, parse_acl
from penstock.plugins.access.config import AccessConfig, Rules
from penstock.plugins.access.control import FileAccess, Scope
from tests.helpers.effort import examples
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.virtual import VirtualBroker
from tests.helpers.wire import connected

FILE = """\
topic read public/#
topic write inbox
# a comment

user ann
topic sensors/#
topic deny sensors/secret
topic read $SYS/#
topic write with blanks in it

user bob
topic read sensors/+/state
pattern readwrite own/%u/#
pattern write by-id/%c
pattern read news
pattern deny own/%u/sealed
user ann
topic read late
"""


def allowed(username: str | None, topic: str, client_id: str = "c", text: str = FILE) -> str:
    """Return ``r``, ``w``, ``rw`` or nothing: what a client may do with a topic."""
    access_list = parse_acl(text, "acl")
    return "".join(
        letter
        for letter, access in (("r", READ), ("w", WRITE))
        if access_list.allows(username, client_id, topic, access)
    )


@pytest.mark.parametrize(
    ("username", "topic", "may"),
    [
        (None, "public/a", "r"),
        (None, "public", "r"),
        (None, "inbox", "w"),
        (None, "sensors/a", ""),
        (None, "news", "r"),
        (None, "own//x", ""),
        (None, "by-id/c", "w"),
        ("ann", "public/a", ""),
        ("ann", "sensors/a", "rw"),
        ("ann", "sensors/secret", ""),
        ("ann", "sensors/secret/more", "rw"),
        ("ann", "$SYS/broker/uptime", "r"),
        ("ann", "with blanks in it", "w"),
        ("ann", "late", "r"),
        ("ann", "own/ann/x", "rw"),
        ("ann", "own/ann/sealed", ""),
        ("ann", "own/bob/x", ""),
        ("bob", "sensors/a/state", "r"),
        ("bob", "sensors/a", ""),
        ("eve", "sensors/a", ""),
        ("eve", "news", "r"),
        ("eve", "by-id/c", "w"),
        ("eve", "by-id/d", ""),
    ],
)
def test_who_may_do_what(username: str | None, topic: str, may: str) -> None:
    """The rules at the head of the module, one by one."""
    assert allowed(username, topic) == may


def test_deny_is_stronger_wherever_it_stands() -> None:
    """The order of a client's lines does not matter."""
    before = "user u\ntopic deny a/b\ntopic a/#\n"
    after = "user u\ntopic a/#\ntopic deny a/b\n"
    for text in (before, after):
        assert allowed("u", "a/b", text=text) == ""
        assert allowed("u", "a/c", text=text) == "rw"


def test_a_clients_own_lines_come_before_the_patterns() -> None:
    """A pattern's deny takes nothing away that a line of the user's grants, as in mosquitto."""
    text = "pattern deny x/%u\npattern x/+\nuser u\ntopic read x/u\n"
    assert allowed("u", "x/u", text=text) == "r"
    assert allowed("v", "x/v", text=text) == ""
    assert allowed("v", "x/u", text=text) == "rw"


@pytest.mark.parametrize("name", ["a+", "#", "a/#"])
def test_a_name_that_is_a_wildcard_gets_nothing_by_a_pattern(name: str) -> None:
    """It would match what is not its own (CVE-2017-7650 of mosquitto)."""
    text = "pattern own/%u\npattern id/%c\npattern all\n"
    assert allowed(name, "own/x", text=text) == ""
    assert allowed("u", "id/x", client_id=name, text=text) == ""
    assert allowed(name, "all", text=text) == ""


def test_what_stands_in_a_name_is_not_replaced_again() -> None:
    """A user named %c is that user, not any client."""
    text = "pattern u/%u/%c\n"
    assert allowed("%c", "u/%c/%u", client_id="%u", text=text) == "rw"
    assert allowed("%c", "u/c/c", client_id="c", text=text) == ""
    assert allowed("", "x", text="pattern %u\n") == ""


def test_wildcards_do_not_reach_dollar_topics() -> None:
    """Everything is not the broker's own figures."""
    assert allowed(None, "$SYS/x", text="topic #\npattern +/x\n") == ""
    assert allowed(None, "$SYS/x", text="topic read $SYS/#\n") == "r"


def test_an_empty_file_allows_nothing() -> None:
    """Only what is listed is allowed."""
    assert allowed(None, "a", text="# nothing\n") == ""


def test_answers_are_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is emptied when it is full, and the answers stay right."""
    monkeypatch.setattr(acl, "_MAX_REMEMBERED", 3)
    access_list = parse_acl("topic read a/#\n", "acl")
    for _ in range(2):
        for topic in ("a/1", "b", "a/2", "a/3"):
            assert access_list.allows(None, "c", topic, READ) is topic.startswith("a")
    assert len(access_list._remembered) <= 3


@pytest.mark.parametrize(
    ("username", "client_id", "topic"),
    [("u" * 600, "c", "t"), ("u", "c" * 600, "t"), ("u", "c", "t" * 600)],
)
def test_answers_for_long_names_are_not_remembered(
    username: str, client_id: str, topic: str
) -> None:
    """Who sends names of 64 KB must not fill the memory with them."""
    access_list = parse_acl("pattern read #\n", "acl")
    assert access_list.allows(username, client_id, topic, READ)
    assert not access_list.allows(username, client_id, topic, WRITE)
    assert not access_list._remembered


def test_a_line_that_is_one_word_after_topic_is_the_filter() -> None:
    """Even where the word is one of those for access."""
    access_list = parse_acl("topic read\ntopic  write   b  \n", "acl")
    assert list(access_list.by_user[None]) == [(READ | WRITE, "read"), (WRITE, "b")]
    assert parse_acl("pattern deny a/%c\n", "acl").patterns == ((DENY, "a/%c"),)


def test_every_wrong_line_is_told() -> None:
    """By its number, with what was read and what is allowed there."""
    text = "topic\nuser\nusers ann\ntopic reed a\ntopic a#\npattern read +x/%c\ntopic ok\n"
    with pytest.raises(ConfigError) as caught:
        parse_acl(text, "acl")
    assert [problem.path for problem in caught.value.problems] == [
        f"line {number}" for number in range(1, 7)
    ]
    told = str(caught.value)
    assert "acl: line 3: read 'users ann'; allowed: topic" in told
    assert "acl: line 4: read 'topic reed a'; allowed: read, write, readwrite, deny" in told
    assert "[MQTT-4.7.1-1]" in told


N_USERS: Final = 40

TOPICS: Final = (
    *("a", "b", "a/b", "a/a", "a/b/a", "b/a/b", "/a", "a/", "$x", "$x/a"),
    *("u1", "id", "a/u1", "a/id", "u1/id", "xu1", "idy", "xu1/b", "x%u", "%c"),
)

LEVELS: Final = ("a", "b", "+", "", "$x")
PATTERN_LEVELS: Final = (*LEVELS, "%u", "%c", "x%u", "%cy")
ACCESSES: Final = ("", "read ", "write ", "readwrite ", "deny ")


def rule(chance: random.Random, keyword: str, levels: tuple[str, ...]) -> str:
    """Return a line of an ACL file."""
    chosen = [chance.choice(levels) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.3:
        chosen.append("#")
    return f"{keyword} {chance.choice(ACCESSES)}{'/'.join(chosen) or 'a'}\n"


def acl_file(chance: random.Random) -> str:
    """Return an ACL file with rules for many users, for none, and for all."""
    lines = [rule(chance, "topic", LEVELS) for _ in range(3)]
    for number in range(N_USERS):
        lines.append(f"user u{number}\n")
        lines += [rule(chance, "topic", LEVELS) for _ in range(chance.randint(0, 5))]
        if chance.random() < 0.1:
            lines.append(rule(chance, "pattern", PATTERN_LEVELS))
    return "".join(lines)


async def judged(port: int, username: str | None, client_id: str) -> dict[str, bool]:
    """Return which topics mosquitto lets a client publish to."""
    async with await connected(port, client_id, username=username) as client:
        await client.send(
            *(Publish(topic, b"", qos=1, packet_id=n) for n, topic in enumerate(TOPICS, 1))
        )
        answers = [await client.take(PubAck) for _ in TOPICS]
    return {TOPICS[answer.packet_id - 1]: answer.reason_code < 0x80 for answer in answers}


def ours(rules: AccessList, username: str | None, client_id: str) -> dict[str, bool]:
    """Return the same of these rules."""
    return {topic: rules.allows(username, client_id, topic, WRITE) for topic in TOPICS}


@pytest.mark.parametrize("seed", [1, 2])
async def test_mosquitto_judges_alike(tmp_path: Path, seed: int) -> None:
    """Users with rules of their own and without, clients without a name, wildcards in names."""
    file = tmp_path / "acl"
    text = acl_file(random.Random(seed))  # noqa: S311 (the same files each time)
    file.write_text(text)
    rules = parse_acl(text, "acl")
    clients: list[tuple[str | None, str]] = [(f"u{number}", "id") for number in range(N_USERS)]
    clients += [(None, "id"), ("nobody", "other"), ("u1", "+"), ("u1", "i#"), ("u+", "id")]
    settings = f"user {getpass.getuser()}\nacl_file {file}\nset_tcp_nodelay true\n"
    with running_mosquitto(tmp_path, settings) as mosquitto:
        for username, client_id in clients:
            theirs = await judged(mosquitto.port, username, client_id)
            assert ours(rules, username, client_id) == theirs, (username, client_id, text)


LINES: Final = st.builds(
    "{} {} {}".format,
    st.sampled_from(("topic", "topic", "pattern")),
    st.sampled_from(("read", "write", "readwrite", "readwrite", "deny")),
    st.sampled_from(("#", "#", "+", "a", "u", "v", "%u", "%c", "+/a", "%u/#", "%u/%c", "u/+")),
)
FILES: Final = st.lists(LINES | st.sampled_from(("user u", "user v")), min_size=1, max_size=12)
PUBLISHED: Final = st.tuples(st.sampled_from("uv"), st.sampled_from(("a", "u", "u/a", "v/v")))


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.tuples(FILES, st.lists(PUBLISHED, min_size=2, max_size=6)), min_size=2))
def test_a_remembered_answer_is_the_files_answer(steps: list[Any]) -> None:
    """Whatever the rules, and whenever they are read again, both ways deliver the same."""
    told = [_delivered(steps, made_of) for made_of in (FastCore, Core)]
    assert told[0] == told[1]


def _delivered(steps: list[Any], made_of: type[Core]) -> list[Any]:
    """Play files and publishes; return what the publisher and each subscriber are told."""
    access = FileAccess(AccessConfig(acl_file="acl"))
    access.scopes[""] = scope = Scope(Rules(allow_anonymous=True), "policy", "access")
    scope.access_list = parse_acl("", "acl")
    broker = VirtualBroker(core_class=made_of, access=access)
    clients = {name: broker.connect(name, username=name) for name in "uv"}
    for client in clients.values():
        client.subscribe("#", 1)
    told: list[Any] = []
    for lines, published in steps:
        scope.access_list = parse_acl("\n".join(lines), "acl")
        access.rules_changed()
        for name, topic in published:
            for qos in (0, 1):
                clients[name].publish(topic, b"x", qos=qos)
            told += [(client.take_all(PubAck), client.acknowledge()) for client in clients.values()]
    return told
