"""Claims that come to nothing, on a real server; the others are shown by brokers and a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.engine import Row
from penstock.plugins.cluster.mail_routes import MailRoutes
from penstock.plugins.cluster.mail_sessions import KeptSessions
from penstock.plugins.cluster.owners import NotOwnedError, Owners
from penstock.plugins.cluster.routes import OtherRoutes, OwnRoutes
from penstock.plugins.redis.calls import plain
from penstock.plugins.redis.errors import StorageError
from tests.helpers.redis_server import shared_redis
from tests.plugins.cluster.test_mail_engine import LOGGER, X, bucket, joined, kept, released, server


class Clients:
    """A broker without sessions."""

    def subscriptions(self, client_id: str) -> None:
        """Return nothing."""


def owners_of(
    mail: Any, own: OwnRoutes, is_certain: Callable[[], bool] = lambda: True
) -> tuple[Owners, KeptSessions]:
    """Return the owners of a node without a broker, and its kept sessions."""
    engine = mail.engine
    announcer = Announcer(engine, own)
    routes = MailRoutes(engine.bucket, lambda *_: None, lambda *_: None)
    clients: Any = Clients()
    sessions = KeptSessions(mail, routes, announcer, clients, time.monotonic, LOGGER)
    notes: Any = SimpleNamespace(heard={}, tell=lambda *_: None)
    others = OtherRoutes(lambda *_: None)
    release = lambda *_: None  # noqa: E731
    owners = Owners(engine, others, announcer, is_certain, notes, sessions, release, lambda _: None)
    return owners, sessions


async def test_session_that_could_not_be_read_waits_and_expires_still() -> None:
    """This node has claimed it; as its client was refused, nobody has it."""
    async with joined(server(), "a") as a:
        await released(a, await kept(a, "60"))
        owners, sessions = owners_of(a, OwnRoutes())

        async def load(*_: object) -> None:
            raise StorageError("away")

        sessions.load = load  # type: ignore[method-assign,assignment]
        claim = owners.claim(X, clean_start=False)
        assert claim is not None
        with pytest.raises(NotOwnedError, match="away"):
            await claim
        await plain(a.engine.command(bucket(a), "EXISTS", ":o"))  # what was called before is done
        with Redis(port=shared_redis()) as redis:
            assert not redis.hexists(f"{bucket(a)}:o", X)
            assert redis.hexists(f"{bucket(a)}:s:{X}", "away")
            assert redis.zcard(f"{bucket(a)}:x") == 1


async def test_what_is_told_anew_has_no_session_that_has_gone_elsewhere() -> None:
    """It may have other subscriptions by now, or have ended."""
    async with joined(server(), "a") as a:
        own = OwnRoutes()
        owners, sessions = owners_of(a, own)
        for client_id in ("goes", "stays"):
            row = Row("a", a.engine.epoch, 1)
            owners.owned[client_id] = 1
            sessions.begin(client_id, row)
            sessions.subscribed(client_id, ["f"])
        assert len(own.take(9)) == 2
        owners.unloaded("goes")
        own.tell_all()
        assert [name for name, _ in own.take(9)] == ["\0stays\0f"]


async def test_who_came_before_the_node_was_evicted_is_not_let_in_after_it() -> None:
    """The client may have gone to another node meanwhile, and have sent the same there."""
    is_certain = False
    async with joined(server(), "a") as a:
        owners, _ = owners_of(a, OwnRoutes(), lambda: is_certain)
        claim = owners.claim(X, clean_start=False)
        assert claim is not None
        a.engine.epoch += 1
        is_certain = True
        with pytest.raises(NotOwnedError, match="taken for dead"):
            await claim
