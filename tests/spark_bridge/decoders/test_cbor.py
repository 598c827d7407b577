from __future__ import annotations

import json
from datetime import UTC, datetime

import cbor2
import pytest

from penstock.spark_bridge.decoders import cbor
from penstock.spark_bridge.decoders.contract import DecodeError

MESSAGE = {"host": "a", "value": 1.5, "at": datetime(2026, 1, 1, tzinfo=UTC), 5: [b"\x00", None]}
PAYLOAD = cbor2.dumps(MESSAGE)


def test_a_map_becomes_json() -> None:
    """With tags, keys that are numbers, undefined, and bytes."""
    read = json.loads(cbor.load().to_json(PAYLOAD))
    told = {"host": "a", "value": 1.5, "at": "2026-01-01T00:00:00+00:00", "5": ["AA==", None]}
    assert read == told
    assert cbor.load().to_json(bytes.fromhex("a16161d9ffff01")) == '{"a": 1}'
    assert cbor.load().to_json(bytes.fromhex("a16161f7")) == '{"a": null}'


@pytest.mark.parametrize(
    ("payload", "read"),
    [
        ("a0", {}),
        ("a201020304", {"1": 2, "3": 4}),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("a56161614161626142616361436164614461656145", dict(zip("abcde", "ABCDE", strict=True))),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("bf6346756ef563416d7421ff", {"Fun": True, "Amt": -2}),
        ("a1616182f93c00fb3ff199999999999a", {"a": [1.0, 1.1]}),
        ("a161611bffffffffffffffff", {"a": 2**64 - 1}),
        ("a16161c074323031332d30332d32315432303a30343a30305a", {"a": "2013-03-21T20:04:00+00:00"}),
        ("a161614401020304", {"a": "AQIDBA=="}),
    ],
)
def test_the_examples_of_the_specification_are_read(payload: str, read: dict[str, object]) -> None:
    """RFC 8949, appendix A; what is no map there stands in one."""
    assert json.loads(cbor.load().to_json(bytes.fromhex(payload))) == read


def test_every_part_of_a_payload_and_what_follows_it_is_an_error() -> None:
    """A truncated payload is never taken for a smaller message."""
    decoder = cbor.load()
    for end in range(len(PAYLOAD)):
        with pytest.raises(DecodeError):
            decoder.to_json(PAYLOAD[:end])
    with pytest.raises(DecodeError, match="read 1 bytes after the end"):
        decoder.to_json(PAYLOAD + b"\x00")


@pytest.mark.parametrize(
    "payload",
    [
        # A list of 2 that holds itself twice; a text that is given once and named again.
        bytes.fromhex("a16161d81c82d81d00d81d00"),
        bytes.fromhex("d90100a1616182636161610000d81900"),
        b"\xa1\x61a" + b"\x81" * 100_000,
        b"\x81\x01",
        b"\xa1\x61a\xc1\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00",
    ],
    ids=["shared", "named", "deep", "a list", "a time that is infinite"],
)
def test_what_a_hostile_publisher_sends_is_an_error(payload: bytes) -> None:
    """Few bytes cannot stand for many values, nor for what has no end."""
    with pytest.raises(DecodeError):
        cbor.load().to_json(payload)
