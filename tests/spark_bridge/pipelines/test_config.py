from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from penstock.broker.errors import ConfigError
from penstock.spark_bridge.decoders.formats import load_decoder
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.pipelines.config import EXAMPLE, Pipeline, Sink, as_texts, read_pipeline

FILE = "pipeline.yaml"

LEAST = """
name: plant
storage: data
source: {url: http://127.0.0.1:8080, queue: plant}
sinks:
  messages: {options: {path: data/messages}}
"""

JSON = "decode: {format: json, schema: 'a INT'}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Work in a folder, as the program does in that of the file."""
    with chdir(tmp_path):
        yield tmp_path


def read(text: str) -> Pipeline:
    """Return the pipeline of a text."""
    Path(FILE).write_text(text)
    return read_pipeline(Path(FILE), FILE)


def wrong(text: str) -> str:
    """Return what is told of a text that cannot be used."""
    with pytest.raises((ConfigError, OptionError)) as caught:
        read(text)
    return str(caught.value)


def test_the_example_is_a_pipeline() -> None:
    """What `new` writes can be run."""
    example = read_pipeline(EXAMPLE, "example.yaml")
    assert list(example.all_sinks) == ["messages", "windows", "quarantine"]
    assert example.source_texts("windows")["group"] == "telemetry-windows"
    assert example.checkpoint("windows") == "telemetry-data/checkpoints/windows"


def test_a_pipeline_of_messages_alone_has_no_quarantine() -> None:
    """Nothing is decoded, so nothing can fail to be."""
    pipeline = read(LEAST)
    assert list(pipeline.all_sinks) == ["messages"]
    assert pipeline.trigger_seconds is None
    assert pipeline.decoder_options() is None


def test_what_cannot_be_decoded_has_a_sink_even_if_none_is_named() -> None:
    """Nothing is dropped silently; a sink with the view takes its place."""
    pipeline = read(LEAST + JSON)
    assert pipeline.all_sinks["quarantine"].options == {"path": "data/quarantine"}
    assert pipeline.view_of("quarantine") == "quarantined"
    own = read(LEAST + "  bad: {view: quarantined, format: noop}\n" + JSON)
    assert list(own.all_sinks) == ["messages", "bad"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: plant", "name: ''", "name: read ''; allowed: a name of 1 to 63 letters"),
        ("storage: data", "", "storage: read nothing; allowed: a value"),
        ("queue: plant", "queues: plant", "source: unknown option 'queues' (did you mean 'queue'"),
        ("queue: plant", "", "source: option 'queue' is missing"),
        ("http://127", "tcp://127", "source: option 'url': read 'tcp://127.0.0.1:8080'; allowed:"),
        ("queue: plant", "queue: plant, group: g", "source.group: read 'g'; allowed: no group"),
        ("sinks:", "sink:", "sink: read an unknown key; allowed: one of"),
        ("{options: {path: data/messages}}", "{}", "sinks.messages.options: read no path"),
        ("{options", "{view: mesages, options", "(perhaps messages)"),
        ("messages: {", "windows: {", "sinks.windows.view: read no view, and none is called"),
        ("{options", "{mode: overwrite, options", "sinks.messages.mode: read 'overwrite'"),
        ("{options", "{compact: 1 MB, partition_by: [a], options", "sinks.messages.compact: read"),
        ("{options", "{compact: 1 MB, format: csv, options", "compact with format parquet"),
        (
            "{options: {path: ",
            "{compact: 1 MB, options: {path: s3a://b/",
            "read 1000000 for s3a://b/data/messages; allowed: compact of a folder that is mounted",
        ),
        ("{options", "{mode: update, options", "mode: read update; allowed: append with parquet;"),
        ("messages: {", "a-b: {", "sinks.a-b: read 'a-b'; allowed: a name of letters"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_read_and_what_is_allowed(
    old: str, new: str, told: str
) -> None:
    """Before Spark is started."""
    assert old in LEAST
    assert told in wrong(LEAST.replace(old, new))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("trigger: often\n", "trigger: read 'often'; allowed: 'available-now' or"),
        ("trigger: 0\n", "trigger: read 0; allowed:"),
        ("decode: {format: xml}\n", "decode.format: read 'xml'; allowed: 'json', 'cbor'"),
        ("decode: {format: json}\n", "decode.schema: read nothing; allowed: a value, for format"),
        (
            "decode: {format: json, schema: a INT, schema_file: f}\n",
            "decode.schema_file: read 'f'; allowed: no schema_file with json",
        ),
        ("decode: {format: protobuf, schema_file: f}\n", "decode.message: read nothing"),
        (
            "decode: {format: avro, schema_file: gone.avsc}\n",
            "decode.schema_file: read gone.avsc: No such file or directory; allowed: a file",
        ),
        (
            "decode: {format: sparkplugB, arrays: true}\n",
            "decode.arrays: read true; allowed: with json",
        ),
        ("expires_at: now()\n", "expires_at: read 'now()'; allowed: no expires_at without decode"),
        ("views: {v: DROP TABLE t}\n", "views.v: read 'DROP TABLE t'; allowed: a query of Spark"),
        ("views: {messages: SELECT 1}\n", "views.messages: read the name of another view"),
        (
            "views: {v: SELECT 1}\ntables: {v: {options: {path: p}}}\n",
            "views.v: read the name of another view or table; allowed: each name once",
        ),
        ("  two: {view: messages, options: {path: data/messages/}}\n", "the place of sinks.messag"),
        (
            "  two: {view: messages, format: json, options: {path: ./data/messages/high}}\n",
            "sinks.two: read ./data/messages/high, within data/messages of sinks.messages; allowed",
        ),
        (
            "  two: {view: messages, format: delta, options: {path: data}}\n",
            "sinks.two: read data, with data/messages of sinks.messages in it; allowed: a path",
        ),
        (
            (
                "  two: {view: messages, options: {path: s3a://b/a}}\n"
                "  three: {view: messages, options: {path: s3a://b/a/c/}}\n"
            ),
            "sinks.three: read s3a://b/a/c/, within s3a://b/a of sinks.two; allowed: a path",
        ),
        (
            "  two: {view: messages, options: {path: data/checkpoints/two}}\n",
            "sinks.two: read data/checkpoints/two, within data/checkpoints of checkpoints; allo",
        ),
        (
            "  two: {view: messages, options: {path: data/quarantine}}\n" + JSON,
            "sinks.two: read data/quarantine, the place of sinks.quarantine; allowed: a path",
        ),
        (
            "  two: {view: messages, table: t}\n  three: {view: messages, table: t}\n",
            "sinks.three: read the place of sinks.two; allowed: a path or table of its own",
        ),
        (
            "  two: {view: messages, format: noop, group: plant-messages}\n",
            "sinks.two.group: read the group of sinks.messages; allowed: a group of its own",
        ),
        (
            "  two: {view: messages, format: noop, group: plant-read-once}\n",
            "sinks.two.group: read the group of the query read-once; allowed: a group of its own",
        ),
        (
            "  quarantine: {view: messages, format: noop}\n" + JSON,
            "sinks.quarantine: read 'messages'; allowed: this name for quarantined alone",
        ),
        (
            "  out: {view: messages, format: penstock, options: {url: 'tcp://h'}}\n",
            f"{FILE}: sinks.out.options: option 'url': read 'tcp://h'",
        ),
        ("  bad: {view: quarantined, format: noop}\n", "sinks.bad.view: read 'quarantined'"),
    ],
)
def test_a_wrong_addition_is_named(more: str, told: str) -> None:
    """An error names keys that depend on others, too."""
    text = wrong(LEAST + more)
    assert told in text
    assert text.startswith((FILE, f"penstock: {FILE}"))


def test_each_problem_is_told_at_once() -> None:
    """A file is corrected in one go."""
    told = wrong(LEAST.replace("storage: data", "storeage: data") + "trigger: 0\n")
    assert len(told.splitlines()) >= 3


def test_queries_may_begin_with_comments() -> None:
    """And in any of the ways of SQL."""
    for sql in ("-- why\nSELECT 1", "/* a\nb */ with a as (select 1) from a", "(SELECT 1)"):
        assert read(LEAST + yaml.safe_dump({"views": {"v": sql}})).views["v"] == sql


def test_a_missing_library_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "cbor2", None)
    load_decoder.cache_clear()
    told = wrong(LEAST + "decode: {format: cbor, schema: a INT}\n")
    assert f"{FILE}: decode.format: cbor needs the module cbor2" in told
    assert "pip install 'penstock-mqtt[decoders]'" in told


def test_options_reach_spark_as_texts() -> None:
    """As Spark's own options are written."""
    assert as_texts({"a": True, "b": 1, "c": 1.5, "d": "x"}) == {
        "a": "true",
        "b": "1",
        "c": "1.5",
        "d": "x",
    }
    assert Sink(format="delta", table="a.b").path is None
    assert Sink(options={"path": "p"}).path == "p"
