"""Who ends sessions that have waited for too long, and what is remembered of them."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.plugins.cluster import mail_expiry
from penstock.plugins.cluster.mail_entries import head_of
from penstock.plugins.cluster.mail_expiry import MailExpiry
from penstock.plugins.cluster.node_sink import Shared
from tests.plugins.queue.engines.contract.harness import until


async def test_sessions_that_another_node_forgets_leave_nothing_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that was the first has told of them, and another one is the first by then."""
    monkeypatch.setattr(mail_expiry, "ROUND_SECONDS", 0.0)
    is_first, told = True, list[tuple[str, str]]()

    async def expire(_bucket: str) -> list[tuple[str, str]]:
        return [("o", "x")]

    engine: Any = SimpleNamespace(engine=SimpleNamespace(buckets=["b"]), expire=expire)
    mail: Any = SimpleNamespace(gone=lambda client_id, origin: told.append((client_id, origin)))
    announcer: Any = SimpleNamespace(last_number=lambda: 1, answered=0)
    expiry = MailExpiry(
        engine, mail, announcer, lambda _: None, lambda: is_first, logging.getLogger("test")
    )
    running = asyncio.create_task(expiry.run())
    await until(lambda: bool(told))
    assert expiry._told
    is_first = False
    await until(lambda: not expiry._told)
    assert set(told) == {("x", "o")}
    assert expiry.n_expired == 1
    running.cancel()
    await asyncio.sleep(0)


async def test_many_sessions_that_end_at_once_are_forgotten_in_one_round() -> None:
    """Else there might be more of them with each round."""
    ended = [("o", f"x{number}") for number in range(1000)]

    async def expire(_bucket: str) -> list[tuple[str, str]]:
        return ended[:100]

    async def left_by(*_: str) -> list[Any]:
        return []

    async def forget(_bucket: str, some: Any) -> int:
        del ended[: len(some)]
        return 0

    calls = {"expire": expire, "left_by": left_by, "forget": forget}
    engine: Any = SimpleNamespace(engine=SimpleNamespace(buckets=["b"] * 8), **calls)
    mail: Any = SimpleNamespace(gone=lambda *_: None)
    announcer: Any = SimpleNamespace(last_number=lambda: 1, answered=1)
    log = logging.getLogger("test")
    expiry = MailExpiry(engine, mail, announcer, lambda _: None, lambda: True, log)
    running = asyncio.create_task(expiry.run())
    async with asyncio.timeout(mail_expiry.ROUND_SECONDS):
        while ended:  # noqa: ASYNC110 (time is a part of it)
            await asyncio.sleep(0.1)
    running.cancel()


async def test_a_message_that_cannot_be_read_keeps_no_session_from_being_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes with the session that it waited for; those behind it are given to other members."""
    monkeypatch.setattr(mail_expiry, "ROUND_SECONDS", 0.0)
    forgotten, given = list[Any](), list[bytes]()
    good = head_of("publisher", "$share/s/t"), b"\x30\x03\x00\x01t"

    async def expire(_bucket: str) -> list[tuple[str, str]]:
        return [] if forgotten else [("o", "x")]

    async def left_by(*_: str) -> list[Any]:
        return [(b"1-0", b"?", b"?"), (b"2-0", *good)]

    async def forget(_bucket: str, ended: Any) -> int:
        forgotten.extend(ended)
        return 2

    def give(shared: Shared) -> None:
        given.append(shared.packets)
        shared.done(0)

    calls = {"expire": expire, "left_by": left_by, "forget": forget}
    engine: Any = SimpleNamespace(engine=SimpleNamespace(buckets=["b"]), **calls)
    mail: Any = SimpleNamespace(gone=lambda *_: None)
    announcer: Any = SimpleNamespace(last_number=lambda: 1, answered=1)
    log = logging.getLogger("test")
    expiry = MailExpiry(engine, mail, announcer, give, lambda: True, log)
    running = asyncio.create_task(expiry.run())
    await until(lambda: bool(forgotten))
    await until(lambda: not expiry._told)
    assert forgotten == [("o", "x")]
    assert given == [good[1]]
    assert expiry.n_dropped == 1
    running.cancel()
