from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.options import OPTION_NAMES, SourceOptions, read_options
from penstock.spark_bridge.pipeline import source_texts

NEEDED = {"url": "http://127.0.0.1:8080", "queue": "telemetry"}


def test_defaults_are_filled_in() -> None:
    """Only url and queue must be given."""
    assert read_options(NEEDED) == SourceOptions(url="http://127.0.0.1:8080", queue="telemetry")


def test_every_option_is_read() -> None:
    """Each option's text changes its value, in any case of its name."""
    texts = {
        **NEEDED,
        "group": "reports",
        "token_file": "token",
        "ca_file": "ca.pem",
        "MAX_MESSAGES_PER_BATCH": "7",
        "max_messages_per_request": "8",
        "max_bytes_per_request": "9 kB",
        "wait_seconds": "0",
        "timeout_seconds": "1.5",
        "retry_seconds": "0",
        "fail_on_data_loss": "False",
    }
    assert {name.lower() for name in texts} == set(OPTION_NAMES)
    assert read_options(texts) == SourceOptions(
        url="http://127.0.0.1:8080",
        queue="telemetry",
        group="reports",
        token_file="token",
        ca_file="ca.pem",
        max_messages_per_batch=7,
        max_messages_per_request=8,
        max_bytes_per_request=9_000,
        wait_seconds=0.0,
        timeout_seconds=1.5,
        retry_seconds=0.0,
        fail_on_data_loss=False,
    )


def test_a_slash_at_the_end_of_the_url_is_no_difference() -> None:
    """URLs are copied from browsers."""
    assert read_options({**NEEDED, "url": "http://h:1/"}).url == "http://h:1"


@pytest.mark.parametrize("name", ["url", "queue"])
def test_a_missing_option_is_named(name: str) -> None:
    """The address and the queue have no default."""
    texts = {key: text for key, text in NEEDED.items() if key != name}
    with pytest.raises(OptionError, match=f"option '{name}' is missing"):
        read_options(texts)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    """A misspelt option is an error, never ignored."""
    with pytest.raises(OptionError, match=r"unknown option 'quue' \(did you mean 'queue'\?\)"):
        read_options({**NEEDED, "quue": "x"})
    with pytest.raises(OptionError, match="unknown option 'path'; allowed are url, queue"):
        read_options({**NEEDED, "path": "x"})


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("url", "127.0.0.1:8080", "http://host:port"),
        ("url", "ftp://h", "http://host:port"),
        ("url", "http://h:port", "http://host:port"),
        ("queue", " ", "a name"),
        ("group", " ", "a name"),
        ("max_messages_per_batch", "0", "a whole number from 1"),
        ("max_messages_per_batch", "many", "a whole number from 1"),
        ("max_messages_per_request", "1.5", "a whole number from 1"),
        ("max_bytes_per_request", "-1", "a number of bytes from 1"),
        ("max_bytes_per_request", "1,000 kB", "a number of bytes from 1"),
        ("wait_seconds", "-1", "a number of seconds from 0"),
        ("timeout_seconds", "0", "a number of seconds above 0"),
        ("timeout_seconds", "nan", "a number of seconds above 0"),
        ("retry_seconds", "-1", "a number of seconds from 0"),
        ("retry_seconds", "soon", "a number of seconds from 0"),
        ("fail_on_data_loss", "yes", "true or false"),
    ],
)
def test_a_wrong_value_names_option_text_and_what_is_allowed(
    name: str, text: str, allowed: str
) -> None:
    """The user can mend the option from the message alone."""
    with pytest.raises(OptionError) as caught:
        read_options({**NEEDED, name: text})
    for part in (repr(name), allowed):
        assert part in str(caught.value)


def test_names_are_those_of_the_dataclass() -> None:
    """An option cannot be added without being read."""
    assert {field.name for field in fields(SourceOptions)} == set(OPTION_NAMES)


def test_the_documentation_lists_every_option_with_its_default() -> None:
    """A user reads the table, not the source."""
    text = Path(__file__).parents[2] / "docs" / "spark.md"
    rows = re.findall(r"^\| `(\w+)` \| ([\w.]*) ?\|", text.read_text(), re.MULTILINE)
    defaults = source_texts(SourceOptions(url="", queue=""))
    assert [row for row in rows if row[0] in defaults] == list(defaults.items())
