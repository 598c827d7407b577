from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.__main__ import StopSignals, describe, main, read_pairs, read_trigger
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.pipeline import Summary
from penstock.spark_bridge.sink_folder import held_folders
from tests.helpers.gateway import running_gateway


def arguments(folder: Path, url: str, *more: str) -> list[str]:
    """Return the program's arguments for a run in a folder."""
    given = ["--url", url, "--queue", "telemetry", "--output", str(folder / "messages")]
    return [*given, "--checkpoint", str(folder / "checkpoint"), *more]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--trigger", "often"], "--trigger: read 'often'; allowed: available-now or a number"),
        (["--trigger", "0"], "--trigger: read '0'; allowed: available-now or a number"),
        (["--option", "fail_on_data_loss"], "--option: read 'fail_on_data_loss'; allowed: NAME="),
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
    assert main(arguments(tmp_path, gone.url, "--option", "retry_seconds=0")) == 1
    error = capsys.readouterr().err
    assert error.startswith("penstock spark: queue 'telemetry' cannot be reached")
    assert not (tmp_path / "checkpoint").exists()


def test_triggers_are_seconds_or_available_now() -> None:
    """None stands for what is there now."""
    assert read_trigger("available-now") is None
    assert read_trigger("2.5") == 2.5
    with pytest.raises(OptionError):
        read_trigger("inf")


def test_pairs_keep_equals_signs_of_their_values() -> None:
    """Java options are full of them."""
    assert read_pairs("--conf", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}


def test_a_summary_names_only_what_happened() -> None:
    """One line, zeros left out."""
    plain = Summary(1_200, 2, 3.25, 0, {"malformed": 0}, 0)
    assert describe(plain) == "ingested 1,200 messages in 2 micro-batches, 3.2 s"
    full = Summary(10, 1, 0.5, 10, {"malformed": 3, "incomplete": 0}, 4)
    assert describe(full) == (
        "ingested 10 messages in 1 micro-batches, 0.5 s, aggregated 10, malformed 3, "
        "late groups dropped 4"
    )


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
