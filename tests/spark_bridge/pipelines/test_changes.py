from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.spark_bridge.pipelines.changes import ChangeError, QueryRecord, compare, without_names

RECORD = QueryRecord(
    queue="plant",
    group="plant-windows",
    place="parquet data/windows",
    mode="append",
    state=("Aggregate [host], [host, count(1)]",),
    columns="host STRING, n BIGINT",
    steps={"views.windows": "SELECT 1"},
    types={"type": "struct", "fields": []},
    partition_by=(),
)


def notes(before: QueryRecord | None, present: QueryRecord | None) -> list[str]:
    """Return what is told where a sink was one query and is another."""
    return list(
        compare(
            {} if before is None else {"windows": before, "other": RECORD},
            {} if present is None else {"windows": present, "other": RECORD},
        )
    )


def test_what_has_not_changed_is_not_told() -> None:
    """Nor is a first run; a record comes back from its file as it was."""
    assert notes(RECORD, RECORD) == []
    assert notes(None, RECORD) == []
    assert QueryRecord.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def test_what_spark_takes_over_is_told() -> None:
    """From the next message on; what is written stays, and old groups keep messages."""
    assert notes(RECORD, replace(RECORD, steps={"views.windows": "SELECT 2"})) == [
        "sinks.windows: changed from the next message on: views.windows"
    ]
    assert (
        "its columns were host STRING, n BIGINT and are n INT"
        in notes(RECORD, replace(RECORD, columns="n INT"))[0]
    )
    assert notes(RECORD, replace(RECORD, group="new"))[0].endswith(
        "plant-windows keeps messages until it is deleted: "
        "penstock queue delete plant plant-windows"
    )
    assert notes(replace(RECORD, state=()), replace(RECORD, state=(), mode="update")) == []


def typed(**columns: Any) -> QueryRecord:
    """Return a record with columns of these types."""
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    return replace(RECORD, types={"type": "struct", "fields": fields})


def test_a_column_of_another_type_is_refused_where_files_have_types() -> None:
    """Readers could not take old and new files together; columns may come and go."""
    part = {"type": "struct", "fields": [{"name": "x", "type": "long"}]}
    more = {"type": "struct", "fields": [*part["fields"], {"name": "y", "type": "string"}]}
    before = typed(v="double", gone="string", parts={"type": "array", "elementType": part})
    assert notes(before, typed(V="double", parts={"type": "array", "elementType": more})) == []
    for present, told in (
        (typed(v="string"), "sinks.windows: read v as string, and the files in its folder have"),
        (typed(v="decimal(10,2)"), "read v as decimal(10,2), and the files in its folder have it"),
        (typed(parts={"type": "array", "elementType": "long"}), "read parts as long, and the fil"),
    ):
        with pytest.raises(ChangeError) as caught:
            notes(before, present)
        assert told in caught.value.text
    as_json = (replace(each, place="json data/windows") for each in (before, typed(v="string")))
    assert notes(*as_json) == []
    assert QueryRecord.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_other_folders_for_values_are_refused() -> None:
    """Spark does not read a folder that has both."""
    before = replace(RECORD, partition_by=("day",))
    assert notes(before, before) == []
    with pytest.raises(
        ChangeError, match=r"read partition_by \[\], and the files in its folder are"
    ):
        notes(before, replace(RECORD, partition_by=()))
    assert QueryRecord.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_sinks_that_come_and_go_are_told() -> None:
    """The group of one that has gone keeps messages in the queue."""
    (gone,) = compare({"windows": RECORD}, {})
    assert "penstock queue delete plant plant-windows" in gone
    (new,) = compare({"windows": RECORD}, {"windows": RECORD, "more": RECORD})
    assert new == "sinks.more is new and begins where its group plant-windows stands"


@pytest.mark.parametrize(
    ("present", "told"),
    [
        (replace(RECORD, queue="other"), "read queue other, and its checkpoint is that of plant"),
        (replace(RECORD, place="parquet x"), "read place parquet x, and its checkpoint"),
        (replace(RECORD, state=("Aggregate [topic], []",)), "its aggregates, joins of streams or"),
        (replace(RECORD, state=()), "its aggregates, joins of streams or"),
        (replace(RECORD, mode="update"), "read mode update, and its state is that of append"),
    ],
)
def test_what_spark_cannot_take_over_is_refused(present: QueryRecord, told: str) -> None:
    """With what may be done instead."""
    with pytest.raises(ChangeError) as caught:
        notes(RECORD, present)
    assert f"sinks.windows: {told}" in caught.value.text
    assert "another name for the sink" in caught.value.text


def test_numbers_and_aliases_of_a_plan_make_no_difference() -> None:
    """Spark numbers columns anew in each run; an alias names an output, not a state."""
    line = "~Aggregate [window#68-T10000ms, data#54.host], [count(1) AS n#62L, max(up#53) AS `a b`]"
    assert without_names(line) == "Aggregate [window, data.host], [count(1), max(up)]"
