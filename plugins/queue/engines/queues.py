"""Logical queues as they are in the storage, with their groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from penstock.plugins.queue.engines.contract import (
    GroupSpec,
    OffsetError,
    QueueSpec,
    UnknownGroupError,
)
from penstock.plugins.queue.engines.keys import key_reader
from penstock.plugins.queue.engines.leases import Group, Place
from penstock.plugins.queue.engines.physical import PhysicalQueue
from penstock.plugins.queue.engines.store import QueueRow
from penstock.plugins.queue.engines.waited import Waited


class Stored(NamedTuple):
    """A message with a deduplication identifier.

    Attributes:
        stored_at: seconds of the engine's clock.
        number: its physical queue.
        offset: its offset there.
    """

    stored_at: float
    number: int
    offset: int


class Newest(NamedTuple):
    """The newest message of a key.

    Attributes:
        number: its physical queue.
        first_offset: of its segment.
        bit: index in the segment.
    """

    number: int
    first_offset: int
    bit: int


class LogicalQueue(Waited):
    """A logical queue.

    Attributes:
        row_id: row number.
        name: its name.
        incarnation: UUID of its life.
        spec: its settings.
        physical: by number, ascending.
        groups: by name.
        messages: that exist.
        payload_bytes: of these.
        stored_bytes: that they take in the storage.
        reserved_messages: whose room is reserved and that are not stored.
        reserved_bytes: of these.
        removed: messages that left unread, by reason.
        stored: messages with deduplication identifiers, in the order in which they were stored.
        newest: newest message of each key, for `keeps_last`; None while it is not known.
        arrivals: how often messages were stored.
        is_limited: whether its settings limit what it holds.
        is_deleted: whether it exists no longer.
    """

    def __init__(self, row: QueueRow, spec: QueueSpec) -> None:
        super().__init__()
        self.row_id, self.name, self.incarnation, _ = row
        self.physical: dict[int, PhysicalQueue] = {}
        self.groups: dict[str, Group] = {}
        self.messages = 0
        self.payload_bytes = 0
        self.stored_bytes = 0
        self.reserved_messages = 0
        self.reserved_bytes = 0
        self.removed: dict[str, int] = {}
        self.stored: dict[bytes, Stored] = {}
        self.newest: dict[str, Newest] | None = None
        self.is_deleted = False
        self.change(spec)

    def change(self, spec: QueueSpec) -> None:
        """Take other settings."""
        self.spec = spec
        self.is_limited = spec.max_messages is not None or spec.max_bytes is not None
        self.key_of = key_reader(spec.key)
        self.newest = None
        for group in self.groups.values():
            group.key_of = self.key_of
            group.delay_seconds = spec.delay_seconds

    def row(self, spec: QueueSpec) -> QueueRow:
        """Return its row with other settings."""
        return QueueRow(self.row_id, self.name, self.incarnation, spec_text(spec))

    def group(self, name: str) -> Group:
        """Return a group.

        Raises:
            UnknownGroupError: there is none of this name.
        """
        found = self.groups.get(name)
        if found is None:
            known = ", ".join(sorted(self.groups)) or "none"
            raise UnknownGroupError(f"group of queue {self.name}: read {name!r}; allowed: {known}")
        return found

    def part(self, number: int) -> PhysicalQueue:
        """Return a physical queue.

        Raises:
            OffsetError: there is none of this number.
        """
        found = self.physical.get(number)
        if found is None:
            raise OffsetError(
                f"physical queue of {self.name}: read {number}; allowed: "
                f"{', '.join(map(str, self.physical))}"
            )
        return found

    def places(self, number: int) -> list[Place]:
        """Return the places of all groups in a physical queue."""
        return [group.places[number] for group in self.groups.values()]

    def holds(self, newest: Newest) -> bool:
        """Say whether the newest message of a key has not left."""
        part = self.physical.get(newest.number)
        if part is None or part.index.first_of(newest.first_offset) != newest.first_offset:
            return False
        return not part.gone_bits(newest.first_offset) >> newest.bit & 1

    def has_room(self, n_messages: int, n_bytes: int) -> bool:
        """Say whether messages fit, in addition to those whose room is reserved."""
        spec = self.spec
        if spec.when_full == "drop_oldest":
            messages = held_bytes = 0
        else:
            messages = self.messages + self.reserved_messages
            held_bytes = self.payload_bytes + self.reserved_bytes
        if spec.max_messages is not None and messages + n_messages > spec.max_messages:
            return False
        return spec.max_bytes is None or held_bytes + n_bytes <= spec.max_bytes


def spec_text(spec: QueueSpec | GroupSpec) -> str:
    """Return settings as JSON."""
    return json.dumps(asdict(spec), sort_keys=True)


def queue_spec(text: str) -> QueueSpec:
    """Return the settings of a queue out of JSON."""
    keys = _known(QueueSpec, json.loads(text))
    keys["topics"] = tuple(keys.get("topics") or ())
    groups: Mapping[str, Any] = keys.get("groups") or {}
    keys["groups"] = {name: _group_spec(values) for name, values in groups.items()}
    return QueueSpec(**keys)


def group_spec(text: str) -> GroupSpec:
    """Return the settings of a group out of JSON."""
    return _group_spec(json.loads(text))


def _group_spec(values: Mapping[str, Any]) -> GroupSpec:
    keys = _known(GroupSpec, values)
    if keys.get("topics") is not None:
        keys["topics"] = tuple(keys["topics"])
    return GroupSpec(**keys)


def _known(kind: type[QueueSpec | GroupSpec], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that this version knows; one of a newer version has no effect here."""
    return {name: value for name, value in values.items() if name in kind.__dataclass_fields__}
