from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.spark_bridge.decoders.contract import (
    DecodeError,
    column,
    needed_for,
    new_decoder,
    struct,
)
from penstock.spark_bridge.errors import OptionError


def test_a_missing_library_is_told_with_the_extra_that_brings_it() -> None:
    """One line that can be copied."""
    told = r"decode.format: cbor needs the module nosuch: pip install 'penstock-mqtt\[decoders\]'"
    with pytest.raises(OptionError, match=told), needed_for("cbor"):
        raise ModuleNotFoundError(name="nosuch")


def test_values_have_the_form_from_which_spark_reads_their_type() -> None:
    """Bytes as base64, times as ISO 8601, decimals with all of their digits."""
    values = {
        "bytes": b"\x00\xff",
        "time": datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "exact": Decimal("12345678901234567890.01"),
        "gone": ...,
    }
    text = new_decoder(lambda _: values, (), nothing=...).to_json(b"")
    assert json.loads(text) == {
        "bytes": "AP8=",
        "time": "2026-01-02T03:04:05.000600+00:00",
        "day": "2026-01-02",
        "exact": "12345678901234567890.01",
        "gone": None,
    }


@pytest.mark.parametrize("value", [[1], 1, None, "text", {"a": object()}, {b"a": 1}])
def test_what_is_no_object_of_names_and_values_is_an_error(value: Any) -> None:
    """The error says what was read."""
    with pytest.raises(DecodeError, match=r"."):
        new_decoder(lambda _: value, ()).to_json(b"")


@pytest.mark.parametrize("raised", [KeyError("x"), IndexError, EOFError, RecursionError, OSError])
def test_only_decode_errors_escape(raised: Exception) -> None:
    """A payload cannot fail a query, whatever a library raises for it."""

    def read(_: bytes) -> Any:
        raise raised

    with pytest.raises(DecodeError):
        new_decoder(read, (OSError,)).to_json(b"")


def test_names_are_quoted_in_ddl() -> None:
    """Devices call their fields as they like."""
    assert column("a`b c", "INT") == "`a``b c` INT"
    assert struct({"x-y": "INT", "z": "STRING"}) == "STRUCT<`x-y`: INT, `z`: STRING>"
