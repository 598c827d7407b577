"""Reads and checks a pipeline's file before Spark starts.

The file uses Spark's own terms where Spark has some: options of sources and sinks, DDL and SQL. SQL
and DDL are texts here. Spark checks them when it has started, before any query runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.checked_yaml import read_mapping, show, suggest, validate_config
from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Seconds
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.spark_bridge.decoders.formats import DecoderOptions, load_decoder
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.sink_folder import local_folder
from penstock.spark_bridge.sink_options import read_sink_options

AVAILABLE_NOW: Final = "available-now"

EXAMPLE: Final = Path(__file__).with_name("example.yaml")
"""An example pipeline for the telemetry of the demo."""

EXAMPLE_URL: Final = "http://127.0.0.1:8080"
EXAMPLE_QUEUE: Final = "telemetry"

INFER: Final = "infer"
"""The value of `schema` for the columns of a sample of the queue."""

MESSAGES: Final = "messages"
DECODED: Final = "decoded"
QUARANTINED: Final = "quarantined"
BUILT_IN: Final = {
    MESSAGES: "the messages as the source gives them",
    DECODED: "those that could be decoded, with `data`",
    QUARANTINED: "the others, with `reason` and `detail`",
}
"""The views that each pipeline has, with their content; the last two only with `decode`."""

QUARANTINE: Final = "quarantine"
"""The name of the sink that is added for `QUARANTINED` where there is none, and of its folder."""

READ_ONCE: Final = "read-once"
"""The name of the query that several sinks share. No sink can have it."""

FILE_FORMATS: Final = ("csv", "json", "orc", "parquet", "text", "xml")
"""The formats that Spark writes as files into the folder `path`."""

TO_MQTT: Final = "penstock"
"""The format of a sink whose rows a broker publishes."""

DEFAULT_COMPACT_SECONDS: Final = 3_600.0

_GROUP: Final = "group"
"""The option of the source that has another value for each sink."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_GROUP_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_QUERY: Final = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?:\(|(?:SELECT|WITH|FROM|VALUES|TABLE)\b)",
    re.IGNORECASE | re.DOTALL,
)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name of letters, digits and underscores, as in SQL without quotes")
    return name


def _checked_prefix(name: str) -> str:
    if not _GROUP_PREFIX.fullmatch(name):
        raise ValueError("a name of 1 to 63 letters, digits, dots, dashes and underscores")
    return name


def _checked_query(text: str) -> str:
    if not _QUERY.match(text):
        raise ValueError("a query of Spark SQL, which begins with SELECT, WITH or FROM")
    return text


Name: TypeAlias = Annotated[str, AfterValidator(_checked_name)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Query: TypeAlias = Annotated[str, AfterValidator(_checked_query)]
Options: TypeAlias = dict[Text, str | bool | int | float]


@dataclass(frozen=True, slots=True, config=STRICT)
class Decode:
    """The rule by which payloads become columns; the keys under `decode`.

    Attributes:
        format: the format of the payloads.
        schema: the columns of the payload as Spark's DDL, for JSON and CBOR; `infer` takes those of
            a sample in the first run. A message without a value for a column that is NOT NULL is
            quarantined as `incomplete`.
        schema_file: the file with an Avro schema in JSON, or the output of ``protoc
            --include_imports -o FILE``.
        message: the message type of Protocol Buffers, such as ``plant.Reading``.
        sample: the most messages from which a schema is inferred.
        refuse: the conditions in SQL over the columns of `messages` and `data`, by reason. A
            message for which one is true is quarantined for that reason.
        arrays: whether a JSON payload that is an array of objects becomes a row for each of them.
        rescue: whether the view `decoded` has a column `rescued`, a map to texts of the fields of
            JSON or CBOR that the schema does not name.
    """

    format: Literal["json", "cbor", "avro", "protobuf", "sparkplugB"]
    schema: Text | None = None
    schema_file: Text | None = None
    message: Text | None = None
    sample: Positive = 1_000
    refuse: dict[Name, Text] = field(default_factory=dict)
    arrays: bool = False
    rescue: bool = False

    def __post_init__(self) -> None:
        """Check that the format has what it needs, and no more."""
        needed = {
            "json": {"schema"},
            "cbor": {"schema"},
            "avro": {"schema_file"},
            "protobuf": {"schema_file", "message"},
        }.get(self.format, set())
        for key in ("schema", "schema_file", "message"):
            value = getattr(self, key)
            if value is None and key in needed:
                raise ValueError(f"{key}: read nothing; allowed: a value, for format {self.format}")
            if value is not None and key not in needed:
                raise ValueError(f"{key}: read {value!r}; allowed: no {key} with {self.format}")
        for key, formats in (("arrays", ("json",)), ("rescue", ("json", "cbor"))):
            if getattr(self, key) and self.format not in formats:
                raise ValueError(f"{key}: read true; allowed: with {' or '.join(formats)}")


@dataclass(frozen=True, slots=True, config=STRICT)
class Table:
    """Data to join with; the keys under `tables.NAME`.

    Attributes:
        options: the options of the format, such as `path`.
        schema: the columns as DDL; None where the format has them.
    """

    format: Text = "parquet"
    options: Options = field(default_factory=dict)
    schema: Text | None = None


@dataclass(frozen=True, slots=True, config=STRICT)
class Sink:
    """The destination of the rows of a view; the keys under `sinks.NAME`.

    Attributes:
        view: the name of the view; None for the sink's own name.
        format: any format that Spark writes streams to.
        options: the options of the format, such as `path`.
        mode: Spark's output mode; files only have `append`.
        partition_by: the columns whose values become folders.
        group: the group of the queue as which the sink's query reads; None for ``PIPELINE-SINK``.
        compact: the size of the files into which smaller ones are joined; None leaves them as they
            are.
        compact_every: the seconds between two compactions in a run that goes on; the files are also
            compacted at the end.
    """

    view: Text | None = None
    format: Text = "parquet"
    options: Options = field(default_factory=dict)
    table: Text | None = None
    mode: Literal["append", "update", "complete"] = "append"
    partition_by: tuple[Text, ...] = ()
    group: Text | None = None
    compact: PositiveSize | None = None
    compact_every: Seconds = DEFAULT_COMPACT_SECONDS

    def __post_init__(self) -> None:
        """Check keys that depend on each other."""
        if self.format in FILE_FORMATS and self.table is None and "path" not in self.options:
            raise ValueError(f"options: read no path; allowed: path, where {self.format} files lie")
        if self.format in FILE_FORMATS and self.table is None and self.mode != "append":
            raise ValueError(
                f"mode: read {self.mode}; allowed: append with {self.format}; update and complete "
                "are for formats that replace rows, such as delta, and for penstock"
            )
        if self.compact is None:
            return
        is_plain = self.format == "parquet" and self.path is not None and not self.partition_by
        if not is_plain:
            raise ValueError(
                f"compact: read {self.compact}; allowed: compact with format parquet, a path and "
                "no partition_by"
            )
        if local_folder(str(self.path)) is None:
            raise ValueError(
                f"compact: read {self.compact} for {self.path}; allowed: compact of a folder that "
                "is mounted on this machine"
            )

    @property
    def place(self) -> str:
        """The path or URI that the rows go to, whatever the format; "" for none."""
        return str(self.options.get("path", ""))

    @property
    def path(self) -> str | None:
        """The folder of a sink of files; None for any other."""
        is_folder = self.format in FILE_FORMATS and self.table is None
        return str(self.options["path"]) if is_folder else None


@dataclass(frozen=True, slots=True, config=STRICT)
class Pipeline:
    """A pipeline's file.

    Attributes:
        name: the beginning of the names of the groups as which the sinks read.
        storage: the folder or URI of the checkpoints and of the record of the last run.
        trigger: the seconds between two micro-batches; with `available-now`, the run reads the
            waiting messages and ends.
        decode: the rule by which payloads become columns; None leaves payloads as they are.
        expires_at: a timestamp in SQL over the columns of `messages` and `data`. A message whose
            lifetime ended before its micro-batch began is dropped and counted. With None, no
            message is dropped.
        tables: tables to join with, by name.
        views: queries over the views and tables before them, by name.
        reads_once: whether one query reads and decodes the messages for all sinks of files and of
            ``penstock`` whose views keep no state. They read as the group ``PIPELINE-read-once``,
            wait for the slowest of them, and fail together. A sink that was there before keeps its
            way of reading.
    """

    name: Annotated[str, AfterValidator(_checked_prefix)]
    storage: Text
    source: Options
    sinks: Annotated[dict[Name, Sink], Field(min_length=1)]
    trigger: Literal["available-now"] | Seconds = AVAILABLE_NOW
    decode: Decode | None = None
    expires_at: Text | None = None
    tables: dict[Name, Table] = field(default_factory=dict)
    views: dict[Name, Query] = field(default_factory=dict)
    reads_once: bool = False
    configuration: dict[Text, str | bool | int | float] = field(default_factory=dict)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The views that come before its own."""
        return tuple(BUILT_IN) if self.decode is not None else (MESSAGES,)

    @property
    def all_sinks(self) -> dict[str, Sink]:
        """All sinks by name, including the one for the quarantine."""
        if self.decode is None or self._has_quarantine:
            return dict(self.sinks)
        path = f"{self.storage.rstrip('/')}/{QUARANTINE}"
        return self.sinks | {QUARANTINE: Sink(view=QUARANTINED, options={"path": path})}

    @property
    def trigger_seconds(self) -> float | None:
        """Seconds between two micro-batches; None where the run ends by itself."""
        return None if self.trigger == AVAILABLE_NOW else float(self.trigger)

    def view_of(self, sink: str) -> str:
        """Return the view whose rows a sink takes."""
        return self.all_sinks[sink].view or sink

    @property
    def _has_quarantine(self) -> bool:
        views = {sink.view or name for name, sink in self.sinks.items()}
        return QUARANTINED in views

    def source_texts(self, query: str) -> dict[str, str]:
        """Return the source's options for a query: `READ_ONCE`, or that of a sink."""
        own = None if query == READ_ONCE else self.all_sinks[query].group
        group = own or f"{self.name}-{query}"
        return as_texts(self.source) | {_GROUP: group}

    def checkpoint(self, query: str) -> str:
        """Return where the checkpoint of a query is."""
        return f"{self.checkpoints}/{query}"

    @property
    def checkpoints(self) -> str:
        """The folder or URI of the checkpoints."""
        return f"{self.storage.rstrip('/')}/checkpoints"

    def decoder_options(self) -> DecoderOptions | None:
        """Return the options of the decoder of the payloads; None where Spark decodes them.

        Raises:
            OSError: the schema file cannot be read.
        """
        decode = self.decode
        if decode is None or decode.format == "json":
            return None
        schema = Path(decode.schema_file).read_bytes() if decode.schema_file else b""
        return DecoderOptions(decode.format, schema, decode.message or "")


def as_texts(options: Mapping[str, str | bool | float]) -> dict[str, str]:
    """Return options as Spark takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def example_text(url: str, queue: str) -> str:
    """Return the text of the example, for the queue at an address."""
    text = EXAMPLE.read_text(encoding="utf-8")
    text = text.replace(f"url: {EXAMPLE_URL}", f"url: {url}")
    return text.replace(f"queue: {EXAMPLE_QUEUE}", f"queue: {queue}")


def read_pipeline(path: Path, file: str) -> Pipeline:
    """Return the pipeline of a file.

    Args:
        path: the path of the file. Paths in it are relative to the working folder, which must be
            the file's.
        file: the name of the file, for errors.

    Raises:
        ConfigError: with one problem for each wrong key or value.
        OptionError: an option of the source, a schema file or a missing library; the text names it.
    """
    try:
        mapping = read_mapping(path)
    except ConfigError as error:
        raise ConfigError(file, error.problems) from error
    pipeline = validate_config(Pipeline, mapping, file, "")
    problems = list(_problems(pipeline))
    if problems:
        raise ConfigError(file, problems)
    try:
        for name in pipeline.all_sinks:
            read_options(pipeline.source_texts(name))
    except OptionError as error:
        raise OptionError(f"{file}: source: {error.text}") from error
    for name, sink in pipeline.sinks.items():
        if sink.format == TO_MQTT:
            try:
                read_sink_options(as_texts(sink.options))
            except OptionError as error:
                raise OptionError(f"{file}: sinks.{name}.options: {error.text}") from error
    try:
        options = pipeline.decoder_options()
        if options is not None:
            load_decoder(options)
    except OSError as error:
        read = f"{error.filename}: {error.strerror}"
        allowed = "a file that can be read; its path begins at the folder of this file"
        problem = ConfigProblem("decode.schema_file", read, allowed)
        raise ConfigError(file, [problem]) from error
    except OptionError as error:
        raise OptionError(f"{file}: {error.text}") from error
    return pipeline


def _problems(pipeline: Pipeline) -> Iterator[ConfigProblem]:
    """Yield contradictions between keys."""
    if _GROUP in {name.lower() for name in pipeline.source}:
        yield ConfigProblem(
            f"source.{_GROUP}",
            show(pipeline.source.get(_GROUP)),
            f"no {_GROUP} here: each sink reads as a group of its own, "
            f"{pipeline.name}-SINK or sinks.SINK.group",
        )
    if pipeline.reads_once and pipeline.decode is not None and pipeline.decode.arrays:
        # Each object is a row there, and the view of the messages would have a row for each.
        yield ConfigProblem("reads_once", "true", "no reads_once with decode.arrays")
    if pipeline.expires_at is not None and pipeline.decode is None:
        yield ConfigProblem("expires_at", show(pipeline.expires_at), "no expires_at without decode")
    known: list[str] = []
    for section, names in (("tables", pipeline.tables), ("views", pipeline.views)):
        for name in names:
            if name in BUILT_IN or name in known:
                read = "the name of another view or table"
                yield ConfigProblem(f"{section}.{name}", read, "each name once")
            known.append(name)
    yield from _problems_of_sinks(pipeline, {*pipeline.built_in, *pipeline.views})


def _problems_of_sinks(pipeline: Pipeline, views: set[str]) -> Iterator[ConfigProblem]:
    yield from _problems_of_places(pipeline)
    groups = {pipeline.source_texts(READ_ONCE)[_GROUP]: f"the query {READ_ONCE}"}
    for name, sink in pipeline.sinks.items():
        view = sink.view or name
        if view not in views:
            read = show(sink.view) if sink.view else f"no view, and none is called {name}"
            yield ConfigProblem(f"sinks.{name}.view", read, suggest(view, views))
        if name == QUARANTINE and pipeline.decode is not None and view != QUARANTINED:
            yield ConfigProblem(f"sinks.{name}", show(view), f"this name for {QUARANTINED} alone")
        group = pipeline.source_texts(name)[_GROUP]
        owner = groups.setdefault(group, f"sinks.{name}")
        if owner != f"sinks.{name}":
            read = f"the group of {owner}"
            yield ConfigProblem(f"sinks.{name}.group", read, "a group of its own")


def _problems_of_places(pipeline: Pipeline) -> Iterator[ConfigProblem]:
    """Yield the sinks that write where another one, or the run itself, writes.

    What the run itself writes may lie in the folder of a sink, as it is in no list of the sink's.
    """
    own = {"checkpoints": pipeline.checkpoints}
    for name, sink in pipeline.all_sinks.items():
        if name not in pipeline.sinks:
            own[f"sinks.{name}"] = sink.place
    known: dict[str, str] = {}
    tables: dict[str, str] = {}
    for name, sink in pipeline.sinks.items():
        if sink.table is not None and tables.setdefault(sink.table, name) != name:
            read = f"the place of sinks.{tables[sink.table]}"
            yield ConfigProblem(f"sinks.{name}", read, "a path or table of its own")
        if not sink.place:
            continue
        for other, place in (known | own).items():
            if _parts(sink.place) == _parts(place):
                read = f"{sink.place}, the place of {other}"
            elif _is_within(sink.place, place):
                read = f"{sink.place}, within {place} of {other}"
            elif other in known and _is_within(place, sink.place):
                read = f"{sink.place}, with {place} of {other} in it"
            else:
                continue
            allowed = "a path or table of its own, and none within another"
            yield ConfigProblem(f"sinks.{name}", read, allowed)
        known[f"sinks.{name}"] = sink.place


def _is_within(inner: str, outer: str) -> bool:
    """Say whether a place is another one, or lies within it."""
    return _parts(inner)[: len(_parts(outer))] == _parts(outer)


def _parts(place: str) -> tuple[str, ...]:
    """Return the parts of a path, or of a URI of another file system."""
    folder = local_folder(place)
    return folder.resolve().parts if folder is not None else tuple(place.rstrip("/").split("/"))
