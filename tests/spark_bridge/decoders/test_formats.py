from __future__ import annotations

import pickle

import cbor2
import pytest

from penstock.spark_bridge.decoders.formats import DecoderOptions, load_decoder
from penstock.spark_bridge.errors import OptionError


def test_a_decoder_is_made_of_options_that_can_be_sent_to_executors() -> None:
    """A process makes it once."""
    options = pickle.loads(pickle.dumps(DecoderOptions("cbor")))  # noqa: S301 - our own
    assert load_decoder(options).to_json(cbor2.dumps({"a": 1})) == '{"a": 1}'
    assert load_decoder(options) is load_decoder(DecoderOptions("cbor"))


def test_each_format_is_of_its_own_library() -> None:
    """Those with a schema file say what is wrong with an empty one."""
    assert load_decoder(DecoderOptions("sparkplugB")).schema is not None
    with pytest.raises(OptionError, match="an Avro schema"):
        load_decoder(DecoderOptions("avro"))
    with pytest.raises(OptionError, match=r"decode.message: read 'a.B'"):
        load_decoder(DecoderOptions("protobuf", message="a.B"))
