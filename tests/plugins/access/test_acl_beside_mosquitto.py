"""The rules of the ACL file are mosquitto's: it is asked about files made by chance."""

from __future__ import annotations

import getpass
import random
from pathlib import Path
from typing import Final

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.plugins.access.acl import WRITE, AccessList, parse_acl
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.wire import connected

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
