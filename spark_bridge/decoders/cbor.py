"""Decodes CBOR (RFC 8949) by cbor2."""

from __future__ import annotations

import io
from typing import Any, Final, NoReturn

from penstock.spark_bridge.decoders.contract import DecodeError, Decoder, needed_for, new_decoder

_REFERENCES: Final = (25, 28, 29, 256)
"""The tags of references, by which a few bytes may stand for a large value many times."""


def load() -> Decoder:
    """Return the decoder of CBOR maps.

    A tag that cbor2 does not know is ignored. A key that is a number becomes a text.

    Raises:
        OptionError: cbor2 is not installed.
    """
    with needed_for("cbor"):
        import cbor2  # noqa: PLC0415 - of an extra

    def refuse(*_: Any) -> NoReturn:
        raise ValueError("a reference to another value")

    def untagged(tag: Any, *_: Any) -> Any:
        return tag.value

    references = dict.fromkeys(_REFERENCES, refuse)

    def read(payload: bytes) -> Any:
        file = io.BytesIO(payload)
        value = cbor2.CBORDecoder(file, tag_hook=untagged, semantic_decoders=references).decode()
        if file.tell() != len(payload):
            raise DecodeError(f"read {len(payload) - file.tell()} bytes after the end of the value")
        return value

    return new_decoder(read, (cbor2.CBORDecodeError,), nothing=cbor2.undefined)
