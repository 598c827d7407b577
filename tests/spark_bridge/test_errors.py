from __future__ import annotations

from penstock.spark_bridge.errors import OptionError, QueueChangedError, one_line, step_line


def test_an_error_text_stands_on_one_line() -> None:
    """Whatever a server sent, the user reads one line."""
    assert str(QueueChangedError("gone:\n  all of it")) == "penstock: gone: all of it"


def test_one_line_finds_our_error_inside_a_traceback_of_spark() -> None:
    """Spark's own texts carry a Python traceback; only the reason is shown."""
    ours = OptionError("option 'url' is missing")
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback\n"
        '  File "source.py", line 3, in schema\n'
        "    raise OptionError('penstock: a decoy in the source line')\n"
        f"penstock.spark_bridge.errors.OptionError: {ours}\n"
        "SQLSTATE: 38000"
    )
    assert one_line(RuntimeError(text)) == "option 'url' is missing"


def test_one_line_takes_the_first_line_of_a_foreign_error() -> None:
    """An error that is not ours is shortened, not hidden."""
    assert one_line(RuntimeError("disk full\n  at java.io")) == "disk full"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_one_line_takes_the_innermost_cause_of_java() -> None:
    """What Java says first is where it was, what it says last is why."""
    text = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.spark.SparkException: Could not parse Master URL: 'locall[2]'\n"
        "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:1)\n"
    )
    parsed = "org.apache.spark.SparkException: Could not parse Master URL: 'locall[2]'"
    assert one_line(RuntimeError(text)) == parsed
    assert one_line(RuntimeError(text + "Caused by: java.io.IOException: full\n\tat x")) == (
        "java.io.IOException: full"
    )


def test_a_query_that_ends_without_a_reason_is_told_with_what_to_do() -> None:
    """What Spark says where the process that plans its micro-batches is killed."""
    text = "[STREAM_FAILED] Query [id = 4f] terminated with exception: (no cause message)"
    told = one_line(RuntimeError(f"{text}\n=== Streaming Query ==="))
    assert told.startswith(
        "Spark gives no reason, as when one of its Python processes is killed or "
    )
    assert told.endswith(f"start the run again: it goes on from its checkpoints: {text}")


def test_a_java_without_memory_is_told_with_what_to_do() -> None:
    """The plan of the micro-batch stays in the checkpoint: to start again is not enough."""
    for text in (
        "Job 0 cancelled because SparkContext was shut down\n=== Streaming Query ===",
        "Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat x",
    ):
        assert "--conf spark.driver.memory=4g" in one_line(RuntimeError(text))


def test_an_error_of_java_alone_is_told_by_its_message() -> None:
    """PySpark has no class for it; any other error is told as before."""

    class UntranslatedError(Exception):
        class java_exception:  # noqa: N801 - py4j's name
            @staticmethod
            def getMessage() -> str:  # noqa: N802 - Java's name
                return "Failed to find\nthe data source: delta"

    assert step_line(UntranslatedError("\tat x")) == "Failed to find the data source: delta"
    assert step_line(RuntimeError("disk full\n  at java.io")) == "disk full"
