"""A virtual broker whose disk is a dictionary, which may crash at any commit and start again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from penstock.broker.config.limits import Limits
from penstock.broker.durable.journal import Journal
from penstock.broker.durable.records import Batch
from penstock.broker.durable.recovery import restore
from penstock.broker.payload import Payload
from penstock.broker.session_rows import (
    DeliveryRow,
    IncomingRow,
    MessageRow,
    RetainedRow,
    SessionRow,
    Stored,
    SubscriptionRow,
    WillRow,
)
from tests.helpers.virtual import VirtualBroker, VirtualClient

_ORIGINS = itertools.count(1)

EPOCH = 1_700_000_000.0
"""The database's clock when a virtual broker's monotonic clock is 0."""


class MemoryDisk:
    """The content of an SQLite file, by the keys of its tables."""

    def __init__(self) -> None:
        self.sessions: dict[Any, SessionRow] = {}
        self.subscriptions: dict[Any, SubscriptionRow] = {}
        self.messages: dict[Any, MessageRow] = {}
        self.deliveries: dict[Any, DeliveryRow] = {}
        self.incoming: dict[Any, IncomingRow] = {}
        self.retained: dict[Any, RetainedRow] = {}
        self.wills: dict[Any, WillRow] = {}

    def write(self, batch: Batch) -> None:
        """Do what a batch says."""
        self.sessions |= {(row.row,): row for row in batch.sessions}
        self.subscriptions |= {row[:2]: row for row in batch.subscriptions}
        for messages in (batch.messages, batch.message_rows_of_runs()):
            self.messages |= {(row.row,): row for row in messages}
        for deliveries in (batch.deliveries, batch.delivery_rows_of_runs()):
            self.deliveries |= {(row.row,): row for row in deliveries}
        for first, last in batch.released:
            for row in range(first, last + 1):
                self.deliveries[row,] = self.deliveries[row,]._replace(is_released=True)
        moved = iter(batch.moved_deliveries)
        for session, packet_id, is_released, row in zip(moved, moved, moved, moved, strict=True):
            self.deliveries[row,] = self.deliveries[row,]._replace(
                session=session, packet_id=packet_id, is_released=bool(is_released)
            )
        self.incoming |= {row[:]: row for row in batch.incoming}
        self.retained |= {(row.topic,): row for row in batch.retained}
        self.wills |= {(row.client_id,): row for row in batch.wills}
        tables: list[tuple[dict[Any, Any], list[Any]]] = [
            (self.sessions, batch.gone_sessions),
            (self.subscriptions, batch.gone_subscriptions),
            (self.incoming, batch.gone_incoming),
            (self.messages, [(row,) for row in batch.gone_messages]),
            (self.deliveries, [(row,) for row in batch.gone_deliveries]),
            (self.retained, batch.gone_retained),
            (self.wills, batch.gone_wills),
        ]
        for table, gone in tables:
            for key in gone:
                table.pop(key, None)
        gone_sessions = {session for (session,) in batch.gone_sessions}
        for table in (self.subscriptions, self.incoming):
            for key in [key for key in table if key[0] in gone_sessions]:
                del table[key]

    def read(self, keep: Callable[[bytes], Payload]) -> Stored:
        """Return all that is there, with what stands for each payload."""
        return Stored(
            sessions=list(self.sessions.values()),
            subscriptions=list(self.subscriptions.values()),
            messages=[
                row._replace(payload=keep(row.payload)) if isinstance(row.payload, bytes) else row
                for row in self.messages.values()
            ],
            deliveries=[row for _, row in sorted(self.deliveries.items())],
            incoming=list(self.incoming.values()),
            retained=list(self.retained.values()),
            wills=list(self.wills.values()),
        )

    def check(self) -> None:
        """Check that every row is referred to, and that what it refers to is there."""
        used = {row.message for row in self.deliveries.values()}
        used |= {row.message for row in self.retained.values()}
        assert used == {row.row for row in self.messages.values()}
        sessions = {row.row for row in self.sessions.values()}
        assert {row.session for row in self.subscriptions.values()} <= sessions
        assert {row.session for row in self.incoming.values()} <= sessions
        of_sessions = {row.session for row in self.deliveries.values() if not row.share}
        assert of_sessions <= sessions
        assert {row.session for row in self.deliveries.values()} <= sessions | {0}


class DurableBroker(VirtualBroker):
    """A virtual broker with a journal; only `commit` and `settle` commit.

    Attributes:
        disk: the disk, which survives `crash`.
        is_disk_full: whether commits fail.
        commits_at_once: whether `settle` commits all changes.
        hurried: the number of times that the journal requested an early commit.
        is_look_due: the journal has asked for `look_at_lone`.
        is_near: whether connections have a short RTT.
        notes_lone: whether a batch has all lone messages, as if their subscribers were late.
    """

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        limits: Limits | None = None,
        now: float = 1000.0,
        away: float = 0.0,
        max_pending_messages: int = 1000,
        max_pending_bytes: int = 1_000_000,
        notes_lone: bool = True,
        **extensions: Any,
    ) -> None:
        super().__init__(limits, **extensions)
        self.now = now
        self._away = away
        self.disk = disk or MemoryDisk()
        self.is_disk_full = False
        self.commits_at_once = True
        self.hurried = 0
        self.is_look_due = False
        self.is_near = True
        self.notes_lone = notes_lone
        self.journal = Journal(
            self.core,
            wake=lambda: None,
            hurry=self._hurry,
            look_later=self._look_later,
            is_near=lambda _fileno: self.is_near,
            new_origin=lambda: next(_ORIGINS).to_bytes(8, "big"),
            max_pending_messages=max_pending_messages,
            max_pending_bytes=max_pending_bytes,
        )
        self._options: dict[str, Any] = {
            "limits": limits,
            "max_pending_messages": max_pending_messages,
            "max_pending_bytes": max_pending_bytes,
            "notes_lone": notes_lone,
            **extensions,
        }
        self.journal.lone.is_busy = True
        stored = self.disk.read(self.core.keep)
        restore(self.core, self.journal, stored, epoch=EPOCH, now=now, away=away)
        self.commit()

    def _hurry(self) -> None:
        self.hurried += 1

    def _look_later(self) -> None:
        self.is_look_due = True

    def look(self) -> None:
        """Have the journal look at lone messages, as it has asked for."""
        assert self.is_look_due
        self.is_look_due = False
        self.journal.look_at_lone()
        super().settle()

    def settle(self) -> None:
        """Serve every connection, and commit where that is not in the test's hands."""
        super().settle()
        while self.commits_at_once and self.seal() is not None:
            self.write()

    def seal(self) -> Batch | None:
        """Make a batch of what has changed, if one is due; return the one to be written."""
        if self.notes_lone:
            self.journal.lone.note_all()
        if self.journal.sealed is None:
            return self.journal.seal(EPOCH, self._away)
        return self.journal.sealed

    def write(self) -> bool:
        """Write the sealed batch and report it; return whether the disk has taken it."""
        batch = self.journal.sealed
        assert batch is not None
        if self.is_disk_full and not batch.is_empty():
            self.journal.failed()
            super().settle()
            return False
        self.disk.write(batch)
        self.disk.check()
        self.journal.committed()
        super().settle()
        return True

    def commit(self) -> None:
        """Commit all that has changed, and what that causes."""
        while self.seal() is not None and self.write():
            pass

    def crash(self, *, down_seconds: float = 0.0) -> DurableBroker:
        """End this broker without a word; return one that starts on its disk later."""
        now, away = self.now + down_seconds, self._away + down_seconds
        return DurableBroker(self.disk, now=now, away=away, **self._options)


def keep(seconds: int = 3600) -> dict[str, Any]:
    """Return the options of a client whose session outlives its connection."""
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds}}


def subscribed(broker: DurableBroker, topic_filter: str = "t/#", qos: int = 2) -> VirtualClient:
    """Return the client ``s`` with a durable session and a subscription."""
    client = broker.connect("s", **keep())
    client.subscribe(topic_filter, qos)
    return client
