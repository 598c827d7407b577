"""Compares a pipeline with its last run: whether Spark can continue from the checkpoints.

A checkpoint holds offsets, and the state of aggregates, joins of streams and removals of
duplicates. Spark hardly compares it with the query: a sum in place of a maximum would go on from
the maximum. So a run records what each sink's query was, and the next run compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.spark_bridge.errors import BridgeError

_STATEFUL: Final = (
    *("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct"),
    *("FlatMapGroupsWithState", "TransformWithState", "GlobalLimit"),
)
_NUMBER: Final = re.compile(r"#\d+L?(-T\d+ms)?")
_ALIAS: Final = re.compile(r" AS (`[^`]*`|\w+)")
_LONGEST_NODE: Final = 1_000_000
_TYPED: Final = ("parquet", "orc")
"""The formats whose files readers cannot read together where a column has two types."""


class ChangeError(BridgeError):
    """An error: a checkpoint cannot be continued with the pipeline in its present form."""

    status = 2


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The properties of a sink's query that are compared.

    Attributes:
        state: a line for each operator that keeps state, with its expressions.
        steps: the steps between source and sink, as texts.
        types: the types of the columns, as Spark's JSON.
        partition_by: the columns whose values are folders.
        reads_once: whether it shares its query with other sinks.
    """

    queue: str
    group: str
    place: str
    mode: str
    state: tuple[str, ...]
    columns: str
    steps: Mapping[str, str]
    types: Mapping[str, Any]
    partition_by: tuple[str, ...]
    reads_once: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the form in the file."""
        return asdict(self) | {"state": list(self.state), "partition_by": list(self.partition_by)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> QueryRecord:
        """Read the form in the file back."""
        lists = {name: tuple(value[name]) for name in ("state", "partition_by")}
        return cls(**{**value, **lists})


def compare(before: Mapping[str, QueryRecord], present: Mapping[str, QueryRecord]) -> Iterator[str]:
    """Yield a line for each change from which Spark can go on.

    Raises:
        ChangeError: Spark cannot go on from a change; in this case no line is yielded.
    """
    refused = [
        f"sinks.{name}: {text}"
        for name in present.keys() & before.keys()
        for text in _refused(before[name], present[name])
    ]
    if refused:
        raise ChangeError(
            f"{'; '.join(sorted(refused))}; allowed: what it was, or another name for the sink, "
            "which then begins with a checkpoint and a group of its own"
        )
    groups = {record.group for record in present.values()}
    for name in before.keys() - present.keys():
        if before[name].group in groups:
            yield f"sinks.{name} is gone"
            continue
        yield (
            f"sinks.{name} is gone; its group keeps messages until it is deleted: "
            f"penstock queue delete {before[name].queue} {before[name].group}"
        )
    for name, record in present.items():
        if name not in before:
            if before:
                yield f"sinks.{name} is new and begins where its group {record.group} stands"
            continue
        yield from (f"sinks.{name}: {text}" for text in _taken_over(before[name], record))


def _refused(before: QueryRecord, present: QueryRecord) -> Iterator[str]:
    for name in ("queue", "place"):
        old, new = getattr(before, name), getattr(present, name)
        if old != new:
            yield f"read {name} {new}, and its checkpoint is that of {old}"
    if before.state != present.state:
        yield (
            "its aggregates, joins of streams or duplicates are not those whose state is in its "
            "checkpoint"
        )
    elif before.mode != present.mode and present.state:
        yield f"read mode {present.mode}, and its state is that of {before.mode}"
    if before.partition_by != present.partition_by:
        yield (
            f"read partition_by {list(present.partition_by)}, and the files in its folder are by "
            f"{list(before.partition_by)}"
        )
    if present.place.split(" ")[0] in _TYPED and before.place == present.place:
        for name, old, new in _other_types(before.types, present.types, ""):
            yield f"read {name} as {new}, and the files in its folder have it as {old}"


def _other_types(before: Any, present: Any, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type before, present type) of columns and parts of columns whose type differs.

    Args:
        before: the type in the last run, as Spark's JSON.
        present: the present type, likewise.
        name: the name of the column; "" for all columns.
    """
    kinds = [each.get("type") if isinstance(each, dict) else each for each in (before, present)]
    if kinds[0] != kinds[1]:
        yield name, str(kinds[0]), str(kinds[1])
    elif kinds[0] == "struct":
        fields = {each["name"].lower(): each["type"] for each in before["fields"]}
        for each in present["fields"]:
            if each["name"].lower() in fields:
                part = f"{name}.{each['name']}".lstrip(".")
                yield from _other_types(fields[each["name"].lower()], each["type"], part)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if isinstance(before, dict) and part in before:
                yield from _other_types(before[part], present[part], name)


def _taken_over(before: QueryRecord, present: QueryRecord) -> Iterator[str]:
    if before.group != present.group:
        yield (
            f"reads as group {present.group}; {before.group} keeps messages until it is deleted: "
            f"penstock queue delete {before.queue} {before.group}"
        )
    changed = sorted(
        name
        for name in before.steps.keys() | present.steps.keys()
        if before.steps.get(name) != present.steps.get(name)
    )
    if changed:
        yield f"changed from the next message on: {', '.join(changed)}"
    if before.columns != present.columns:
        yield f"its columns were {before.columns} and are {present.columns}; what is written stays"


def state_of(plan: Any) -> tuple[str, ...]:
    """Return a line for each operator of a plan that keeps state, from the sink to the source."""
    found: list[str] = []

    def walk(node: Any) -> None:
        children = [node.children().apply(index) for index in range(node.children().size())]
        name = node.nodeName()
        joins_streams = name == "Join" and all(child.isStreaming() for child in children)
        if joins_streams or (name in _STATEFUL and node.isStreaming()):
            found.append(without_names(node.simpleString(_LONGEST_NODE)))
        for child in children:
            walk(child)

    walk(plan)
    return tuple(found)


def without_names(line: str) -> str:
    """Return an operator's line without what differs from run to run, and without aliases."""
    return _ALIAS.sub("", _NUMBER.sub("", line.lstrip("~'")))
