"""Logical queues in the memory of one process, and the JSON of their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.engines.contract import GroupSpec, QueueSpec
from penstock.plugins.queue.engines.leases import LocalGroup, LocalPlace
from penstock.plugins.queue.engines.logical import StoredQueue
from penstock.plugins.queue.engines.partition import Delays, PhysicalQueue
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.store import QueueRow

_READER: Final = "reader"
"""The key of a group's reader, which stands beside the settings of the group."""


class StoredIdentifier(NamedTuple):
    """A message with a deduplication identifier.

    Attributes:
        stored_at: seconds of the engine's clock.
    """

    stored_at: float
    number: int
    offset: int


class Newest(NamedTuple):
    """The newest message of a key.

    Attributes:
        first_offset: the first offset of its segment.
    """

    number: int
    first_offset: int
    bit: int


class LocalQueue(StoredQueue[PhysicalQueue, LocalGroup]):
    """A logical queue.

    Attributes:
        row_id: row number.
        stored: messages with deduplication identifiers, in the order in which they were stored.
        newest: newest message of each key, for `keeps_last`; None while it is not known.
    """

    def __init__(self, row: QueueRow, spec: QueueSpec) -> None:
        self.row_id = row.row_id
        self.stored: dict[bytes, StoredIdentifier] = {}
        self.newest: dict[str, Newest] | None = None
        self.is_deleted = False
        super().__init__(row.name, row.incarnation, spec)

    def change(self, spec: QueueSpec) -> None:
        """Take other settings."""
        super().change(spec)
        self.newest = None
        for group in self.groups.values():
            group.key_of = self.key_of
            group.delay_seconds = spec.delay_seconds

    def row(self, spec: QueueSpec) -> QueueRow:
        """Return its row with other settings."""
        return QueueRow(self.row_id, self.name, self.incarnation, spec_text(spec))

    def places(self, number: int) -> list[LocalPlace]:
        """Return the places of all groups in a physical queue."""
        return [group.places[number] for group in self.groups.values()]

    def note_delays(self, physical: PhysicalQueue, decoded: Decoded, now: float) -> None:
        """Note when the messages of a segment may be received, one of which has its own delay."""
        physical.forget_delays(now)
        due: list[float] = []
        for index in range(decoded.n_messages):
            own = decoded.delay(index)
            delay = self.spec.delay_seconds if own is None else own
            due.append(decoded.stored_clock(index) + delay)
        physical.delays[decoded.first_offset] = Delays(due, sorted(due))
        for place in self.places(physical.number):
            for due_at in set(due):
                place.group.due(place, due_at)

    def holds(self, newest: Newest) -> bool:
        """Say whether the newest message of a key has not left."""
        part = self.physical.get(newest.number)
        if part is None or part.index.first_of(newest.first_offset) != newest.first_offset:
            return False
        return not part.gone_bits(newest.first_offset) >> newest.bit & 1

    @property
    def set_aside(self) -> int:
        """Messages that could not be read and are kept out of the queue."""
        return sum(part.aside for part in self.physical.values())

    def arrival_of_oldest(self) -> float | None:
        """Return the engine's time at which the newest message of the oldest segment arrived."""
        oldest = (
            part.index.following(part.earliest) for part in self.physical.values() if part.messages
        )
        return min((one.newest_clock for one in oldest if one is not None), default=None)


def spec_text(spec: QueueSpec | GroupSpec) -> str:
    """Return settings as JSON."""
    return json.dumps(asdict(spec), sort_keys=True)


def group_text(spec: GroupSpec, reader: str) -> str:
    """Return the settings of a group as JSON, with the reader to which it belongs."""
    return json.dumps(asdict(spec) | {_READER: reader}, sort_keys=True)


def queue_spec(values: Mapping[str, Any]) -> QueueSpec:
    """Return the settings of a queue that JSON holds."""
    groups = {name: group_spec(one) for name, one in values["groups"].items()}
    return QueueSpec(**{**values, "topics": tuple(values["topics"]), "groups": groups})


def group_spec(values: Mapping[str, Any]) -> GroupSpec:
    """Return the settings of a group that JSON holds."""
    topics = values["topics"]
    return GroupSpec(**{**values, "topics": None if topics is None else tuple(topics)})


def stored_group(text: str) -> tuple[GroupSpec, str]:
    """Return the settings of a group and its reader out of what `group_text` has made."""
    values = json.loads(text)
    reader = values.pop(_READER)
    return group_spec(values), reader
