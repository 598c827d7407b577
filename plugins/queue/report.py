"""Reports show the figures of queues as text on a terminal."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from penstock.broker.config.key_types import show_size
from penstock.plugins.queue.wire.frames import DEAD_LETTER
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import aligned, duration

Figures: TypeAlias = Mapping[str, Any]
"""The figures of a queue, as ``GET /queues/NAME`` answers them."""

PREVIEW_CHARACTERS: Final = 60
"""How much of a payload `peek` shows, so that a line fits a wide terminal."""


def stats_lines(queues: Sequence[Figures]) -> list[str]:
    """Return a table of queues, one of their groups, and one of physical queues that were slow.

    Raises:
        KeyError: a figure is missing.
        TypeError: a figure has another type.
    """
    lines = table(
        ("queue", ">messages", ">payload", ">stored", ">oldest", ">removed unread", ">set aside"),
        map(_queue_row, queues),
    )
    groups = [
        _group_row(queue["name"], name, group)
        for queue in queues
        for name, group in queue["groups"].items()
    ]
    if groups:
        counts = (">waiting", ">leased", ">delayed", ">received")
        header = ("queue", "group", "kind", *counts, "settled", "last request")
        lines += ["", *table(header, groups)]
    requests = [
        (queue["name"], name, *_strategy_row(strategy, counts))
        for queue in queues
        for name, group in queue["groups"].items()
        for strategy, counts in group.get("requests", {"by_strategy": {}})["by_strategy"].items()
    ]
    if requests:
        columns = (">requests", ">held", ">hits", ">misses", ">messages a hit")
        lines += ["", *table(("queue", "group", "dequeue", *columns), requests)]
    slow = [
        (queue["name"], ", ".join(map(str, enqueued["excluded"])) or "-", f"{count:,}")
        for queue in queues
        for enqueued in [queue.get("enqueued", {})]
        if (count := enqueued.get("exclusions", 0))
    ]
    if slow:
        lines += ["", *table(("queue", "physical queues left out", ">times left out"), slow)]
    return lines


def peek_lines(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of messages with the beginnings of their payloads.

    Raises:
        KeyError: a part of a message is missing.
        TypeError: a part has another type.
        ValueError: a payload is no base64.
    """
    header = ["place", "arrived", "topic", "publisher", ">bytes", "payload"]
    rows = list(map(_row, messages))
    deaths = [_death(message["properties"].get(DEAD_LETTER)) for message in messages]
    if any(deaths):
        header.insert(-1, "died in")
        rows = [(*row[:-1], death, row[-1]) for row, death in zip(rows, deaths, strict=True)]
    return table(header, rows)


def _queue_row(queue: Figures) -> tuple[str, ...]:
    removed = sum(queue["removed"].values())
    return (
        queue["name"],
        f"{queue['messages']:,}",
        show_size(queue["payload_bytes"]),
        show_size(queue["stored_bytes"]),
        duration(queue["oldest_seconds"]),
        f"{removed:,}",
        f"{queue['set_aside']:,}",
    )


def _group_row(queue: str, name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    settled = ", ".join(f"{n:,} {action}" for action, n in group["settled"].items() if n)
    return (
        queue,
        name,
        group["settings"]["kind"],
        f"{group['waiting']:,}",
        f"{group['leased']:,}",
        f"{group['delayed']:,}",
        f"{group['received']:,}",
        settled or "0",
        f"{duration(group['idle_seconds'])} ago",
    )


def _strategy_row(strategy: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    hits = counts["hit_dequeues"]
    return (
        strategy,
        f"{counts['requests']:,}",
        f"{counts['held']:,}",
        f"{hits:,}",
        f"{counts['missed_dequeues']:,}",
        f"{counts['messages'] / hits:,.1f}" if hits else "-",
    )


def _row(message: Mapping[str, Any]) -> tuple[str, ...]:
    payload = base64.b64decode(message["payload"], validate=True)
    text = payload[: 4 * PREVIEW_CHARACTERS].decode(errors="replace")
    shown = printable(text)[:PREVIEW_CHARACTERS]
    arrived = datetime.fromtimestamp(message["enqueued_at"], UTC)
    return (
        f"{message['physical_queue']}:{message['offset']}",
        f"{arrived:%Y-%m-%dT%H:%M:%SZ}",
        message["topic"],
        message["publisher"],
        f"{len(payload):,}",
        f"{shown}…" if len(shown) < len(text) else shown,
    )


def _death(origin: Mapping[str, Any] | None) -> str:
    """Return where and why a message died; "" where it has not."""
    if origin is None:
        return ""
    return f"{origin['queue']}/{origin['group']}: {origin['reason']}, {origin['receives']} receives"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns; those whose name begins with ``>`` to the right."""
    cells = [[name.removeprefix(">") for name in header]]
    cells += [[printable(cell) for cell in row] for row in rows]
    return list(aligned(cells, [name.startswith(">") for name in header]))
