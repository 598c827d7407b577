from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from penstock.plugins.queue.client import OutgoingMessage, QueueClient
from penstock.spark_bridge.__main__ import (
    INTERRUPTED,
    LONG_RUN_MESSAGES,
    StopSignals,
    _naming_log,
    check_queue,
    is_short,
    main,
    read_pairs,
    read_sink,
    read_trigger,
    with_wait,
)
from penstock.spark_bridge.errors import BridgeError, OptionError
from penstock.spark_bridge.options import read_options
from penstock.spark_bridge.pipelines.config import read_pipeline
from penstock.spark_bridge.sink_folder import held_folders
from tests.helpers.gateway import running_gateway
from tests.helpers.process import SECONDS, Program

LOOK_SECONDS = 0.05


def arguments(folder: Path, url: str, *more: str) -> list[str]:
    """Return the program's arguments for a run in a folder."""
    given = ["--url", url, "--queue", "telemetry", "--output", str(folder / "messages")]
    return [*given, "--checkpoint", str(folder / "checkpoint"), *more]


def started(given: Sequence[str], **options: Any) -> Program:
    """Start the program; its log has what it prints, too."""
    command = shlex.join([sys.executable, "-m", "penstock.spark_bridge", *given])
    return Program(["bash", "-c", f"exec {command} 1>&2"], **options)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--trigger", "often"], "--trigger: read 'often'; allowed: available-now or a number"),
        (["--trigger", "0"], "--trigger: read '0'; allowed: available-now or a number"),
        (["--option", "failOnDataLoss"], "--option: read 'failOnDataLoss'; allowed: NAME="),
        (["--option", "retries=3"], "unknown option 'retries'"),
        (["--conf", "=1"], "--conf: read '=1'; allowed: NAME=VALUE"),
    ],
)
def test_wrong_arguments_end_with_status_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    """What was read and what is allowed, before anything is started or written."""
    assert main(arguments(tmp_path, "http://127.0.0.1:9", *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"penstock spark: {told}")
    assert error.count("\n") == 1
    assert not (tmp_path / "checkpoint").exists()


def test_a_missing_argument_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The usage names it."""
    assert main(["--url", "http://127.0.0.1:9"]) == 2
    assert "--queue" in capsys.readouterr().err
    assert main(["run"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_no_java_ends_with_status_2_and_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own failure over a missing Java is never reached."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(arguments(tmp_path, "http://127.0.0.1:9")) == 2
    error = capsys.readouterr().err
    assert "Spark needs Java 17 or newer" in error
    assert error.count("\n") == 1


def test_a_queue_that_is_not_there_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before seconds go into starting Spark."""
    with running_gateway(tmp_path) as client:
        assert main(arguments(tmp_path, client.url, "--queue", "alarms")) == 1
        assert "no queue 'alarms'" in capsys.readouterr().err
    gone: QueueClient = client
    assert main(arguments(tmp_path, gone.url, "--option", "retrySeconds=0")) == 1
    error = capsys.readouterr().err
    assert error.startswith("penstock spark: queue 'telemetry' cannot be reached")
    assert not (tmp_path / "checkpoint").exists()


def test_triggers_are_seconds_or_available_now() -> None:
    """None stands for what is there now."""
    assert read_trigger("available-now") is None
    assert read_trigger("2.5") == 2.5
    with pytest.raises(OptionError):
        read_trigger("inf")


def test_the_files_of_a_stream_are_joined_where_that_is_asked_for() -> None:
    """In a folder of this machine."""
    assert read_sink("data", None).compact is None
    assert read_sink("data", "128MiB").compact == 128 * 1024**2
    for output, compact, told in (
        ("data", "much", "'--compact': read 'much'; allowed: a number of bytes"),
        ("s3a://b/data", "1MB", "--compact: read 1MB for s3a://b/data; allowed: with a folder"),
    ):
        with pytest.raises(OptionError, match=told):
            read_sink(output, compact)


def test_pairs_keep_equals_signs_of_their_values() -> None:
    """Java options are full of them."""
    assert read_pairs("--conf", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}


def test_a_new_pipeline_is_one_that_can_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the address and the queue that were given; a file that is there stays as it is."""
    file = tmp_path / "plant.yaml"
    given = ["new", str(file), "--url", "http://127.0.0.1:9", "--queue", "plant"]
    assert main(given) == 0
    assert f"penstock spark run {file}" in capsys.readouterr().out
    pipeline = read_pipeline(file, str(file))
    assert pipeline.source == {"url": "http://127.0.0.1:9", "queue": "plant"}
    file.write_text("name: mine")
    assert main(given) == 2
    assert f"{file}: it exists; allowed: a file that does not" in capsys.readouterr().err
    assert file.read_text() == "name: mine"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "plant.yaml: name: read nothing; allowed: a value"),
        ("name: [", "plant.yaml: line 1, column 8: read"),
        (None, "plant.yaml: file: read No such file or directory; allowed: a file that can be"),
    ],
)
def test_a_wrong_pipeline_ends_with_status_2_and_a_line_for_each_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, told: str
) -> None:
    """Before anything is started or written."""
    file = tmp_path / "plant.yaml"
    if text is not None:
        file.write_text(text)
    before = list(tmp_path.iterdir())
    assert main(["run", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("penstock spark: ") for line in lines)
    assert told in lines[0]
    assert list(tmp_path.iterdir()) == before


def test_the_queue_of_a_pipeline_is_asked_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong trigger or setting, and a queue that is not there."""
    file = tmp_path / "plant.yaml"
    with running_gateway(tmp_path) as client:
        assert main(["new", str(file), "--url", client.url, "--queue", "alarms"]) == 0
        assert main(["run", str(file), "--trigger", "often"]) == 2
        assert main(["run", str(file), "--conf", "a"]) == 2
        assert main(["run", str(file)]) == 1
    error = capsys.readouterr().err
    assert "--trigger: read 'often'" in error
    assert "--conf: read 'a'; allowed: NAME=VALUE" in error
    assert "no queue 'alarms'" in error
    assert not (tmp_path / "telemetry-data").exists()


def test_a_run_is_short_unless_it_follows_the_queue_or_much_waits(tmp_path: Path) -> None:
    """The program asks how much waits before it starts Java."""
    assert is_short(None, LONG_RUN_MESSAGES - 1)
    assert not is_short(None, LONG_RUN_MESSAGES)
    assert not is_short(2.0, 0)
    with running_gateway(tmp_path) as client:
        client.enqueue("telemetry", [OutgoingMessage("telemetry/a", b"x")] * 3)
        assert check_queue(read_options({"url": client.url, "queue": "telemetry"})) == 3


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before Spark is started."""
    (tmp_path / "messages").write_text("a file")
    with running_gateway(tmp_path) as client:
        assert main(arguments(tmp_path, client.url)) == 1
    assert f"cannot write {tmp_path / 'messages'}: File exists" in capsys.readouterr().err


@pytest.mark.parametrize("shared", ["messages", "checkpoint"])
def test_a_folder_of_a_run_that_goes_on_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shared: str
) -> None:
    """Told before Spark is started; what the other run has written stays."""
    folder = tmp_path / shared
    folder.mkdir()
    unfinished = folder / "part-00000-unfinished.parquet"
    unfinished.write_bytes(b"half a file")
    with running_gateway(tmp_path) as client, held_folders([folder]):
        assert main(arguments(tmp_path, client.url)) == 2
    told = (
        f"penstock spark: {folder} is in use by process {os.getpid()}; allowed: one run at a time"
    )
    assert capsys.readouterr().err.startswith(told)
    assert unfinished.exists()


def test_a_setting_that_spark_refuses_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    """Spark's own words for the cause, without its traceback, and where more of it stands."""
    with running_gateway(tmp_path) as client:
        given = arguments(tmp_path, client.url, "--master", "locall[2]")
        program = [sys.executable, "-m", "penstock.spark_bridge", *given]
        ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("penstock spark: Spark does not start: ")
    assert "Could not parse Master URL: 'locall[2]'" in ended.stderr
    assert "spark.log)" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "gone", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError()]
)
def test_a_java_that_ended_by_itself_is_told(tmp_path: Path, gone: Exception) -> None:
    """Killed, or out of memory: what stands, what to do, and where more of it stands."""
    told = (
        rf"Java process has ended, .* start the run again: .* \(Spark's log: {tmp_path}/spark\.log"
    )
    with pytest.raises(BridgeError) as caught, _naming_log(tmp_path / "spark.log"):
        raise gone
    assert re.search(told, caught.value.text)
    assert caught.value.status == 1


def java_of(program: Program) -> psutil.Process:
    """Return Spark's Java of a program, as soon as it has been started."""
    own = psutil.Process(program.process.pid)
    while program.process.poll() is None:
        for each in own.children(recursive=True):
            with suppress(psutil.Error):
                if "org.apache.spark.deploy.SparkSubmit" in each.cmdline():
                    return each
        time.sleep(LOOK_SECONDS)
    raise AssertionError(program.log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_leaves_no_java(tmp_path: Path, number: int) -> None:
    """Nor a traceback; as Ctrl-C comes to all programs of a terminal."""
    with running_gateway(tmp_path) as client:
        program = started(arguments(tmp_path, client.url, "--trigger", "0.2"), process_group=0)
        try:
            java = java_of(program)
            send = os.killpg if number == signal.SIGINT else os.kill
            send(program.process.pid, number)
            assert program.wait() == 0, program.log
            assert psutil.wait_procs([java], SECONDS)[0]
        finally:
            program.kill()
    assert program.log == "penstock spark: ended before a query began\n"


def test_ctrl_c_before_spark_starts_leaves_no_traceback(tmp_path: Path) -> None:
    """Such as while a queue is waited for that does not answer."""
    program = started(arguments(tmp_path, "http://127.0.0.1:9"))
    try:
        program.wait_for_log("asked again for")
        program.process.send_signal(signal.SIGINT)
        assert program.wait() == INTERRUPTED
    finally:
        program.kill()
    assert "Traceback" not in program.log


def test_an_older_pyspark_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source in Python has limits from 4.2 on."""
    for name in ("source", "session"):
        monkeypatch.delitem(sys.modules, f"penstock.spark_bridge.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    with running_gateway(tmp_path) as client:
        assert main(arguments(tmp_path, client.url)) == 2
    error = capsys.readouterr().err
    assert error.startswith("penstock spark: PySpark: read version 4.1.1; allowed: 4.2 or later")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "seconds", "wait"),
    [({}, None, None), ({}, 0.5, "0.25"), ({}, 60.0, "1.0"), ({"WAITSECONDS": "9"}, 0.5, None)],
)
def test_an_idle_query_waits_for_less_than_its_trigger(
    given: dict[str, str], seconds: float | None, wait: str | None
) -> None:
    """Spark would warn that it falls behind, each time."""
    assert with_wait(given, seconds) == given | ({} if wait is None else {"waitSeconds": wait})


def test_a_java_that_is_killed_ends_the_run_with_one_line(tmp_path: Path) -> None:
    """Without a traceback of what could not be reached any more."""
    with running_gateway(tmp_path) as client:
        given = arguments(tmp_path, client.url, "--trigger", "0.2", "--option", "group=one")
        program = started(given)
        try:
            program.wait_for_log("local[2]: queue")
            java_of(program).kill()
            assert program.wait() == 1
        finally:
            program.kill()
    told = [line for line in program.log.splitlines() if "local[2]: queue" not in line]
    assert len(told) == 1, program.log
    assert told[0].startswith("penstock spark: Spark's Java process has ended, as when it is kil")


def test_signals_are_counted_not_raised() -> None:
    """One asks for an end in good order, two for an end at once."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signals = StopSignals()
    try:
        signals.install()
        for count, number in enumerate(kept, start=1):
            signal.raise_signal(number)
            assert signals.count == count
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
