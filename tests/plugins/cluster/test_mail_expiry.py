"""Who ends sessions that have waited for too long, and what is remembered of them."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.plugins.cluster import mail_expiry
from penstock.plugins.cluster.mail_expiry import MailExpiry
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
    expiry.start()
    await until(lambda: bool(told))
    assert expiry._told
    is_first = False
    await until(lambda: not expiry._told)
    assert set(told) == {("x", "o")}
    assert expiry.n_expired == 1
    await expiry.close()
    await asyncio.sleep(0)
