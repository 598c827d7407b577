"""The formats that are decoded in Python, by their names in a pipeline's file."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from penstock.spark_bridge.decoders import avro, cbor, protobuf, sparkplug
from penstock.spark_bridge.decoders.contract import Decoder


class DecoderOptions(NamedTuple):
    """The options of a decoder: a plain value that can be sent to executors.

    Attributes:
        format: ``cbor``, ``avro``, ``protobuf`` or ``sparkplugB``.
        schema: the content of the schema file: an Avro schema, or descriptors of Protocol Buffers.
        message: the message type of Protocol Buffers.
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
