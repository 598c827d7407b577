"""The formats that are decoded in Python, by their names in a pipeline's file."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from penstock.spark_bridge.decoders import avro, cbor, protobuf, sparkplug
from penstock.spark_bridge.decoders.contract import Decoder

FORMATS: Final = ("cbor", "avro", "protobuf", "sparkplugB")


class DecoderOptions(NamedTuple):
    """What a decoder is made of; a plain value, so that it can be sent to executors.

    Attributes:
        format: one of `FORMATS`.
        schema: what the schema file holds: an Avro schema, or descriptors of protobuf.
        message: message type of protobuf.
    """

    format: str
    schema: bytes = b""
    message: str = ""


@cache
def load_decoder(options: DecoderOptions) -> Decoder:
    """Return a decoder, one for each process.

    Raises:
        OptionError: its library is missing, or the schema cannot be used.
    """
    if options.format == "cbor":
        return cbor.load()
    if options.format == "avro":
        return avro.load(options.schema)
    if options.format == "protobuf":
        return protobuf.load(options.schema, options.message)
    return sparkplug.load()
