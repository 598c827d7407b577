from __future__ import annotations

import pytest

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.sink_options import SINK_OPTION_NAMES, SinkOptions, read_sink_options

GIVEN = {
    "url": "https://host:1/",
    "topic": "a/b",
    "qos": "2",
    "retain": "true",
    "expiry": "60",
    "contentType": "x",
    "responseTopic": "r",
    "correlationData": "c",
    "userProperties": '{"a": "b", "c": "d"}',
    "writeId": "monday:1",
    "rowsPerRequest": "10",
    "bytesPerRequest": "1 KiB",
    "tokenFile": "token",
    "caFile": "ca.pem",
    "timeoutSeconds": "5",
    "retrySeconds": "0",
}


def test_every_option_is_read() -> None:
    """In any case; those of Spark's own are left alone."""
    assert {*GIVEN, "token"} == set(SINK_OPTION_NAMES)
    texts = {name.upper(): text for name, text in GIVEN.items()}
    found = read_sink_options(texts | {"checkpointLocation": "x", "queryName": "y"})
    assert found == SinkOptions(
        url="https://host:1",
        defaults={
            "topic": "a/b",
            "qos": 2,
            "retain": True,
            "expiry": 60,
            "content_type": "x",
            "response_topic": "r",
            "correlation_data": "c",
            "user_properties": [("a", "b"), ("c", "d")],
        },
        write_id="monday:1",
        rows_per_request=10,
        bytes_per_request=1024,
        token_file="token",
        ca_file="ca.pem",
        timeout_seconds=5.0,
        retry_seconds=0.0,
    )


def test_a_token_is_not_shown() -> None:
    """Options stand in logs."""
    found = read_sink_options({"url": "http://h", "token": "secret"})
    assert found.token == "secret"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({}, "option 'url' is missing"),
        ({"url": "h"}, "option 'url': read 'h'; allowed: http://host:port"),
        ({"url": "http://h", "topics": "a"}, "unknown option 'topics' (did you mean 'topic'?)"),
        ({"url": "http://h", "qos": "3"}, "option 'qos': read '3'; allowed: 0, 1 or 2"),
        ({"url": "http://h", "retain": "yes"}, "option 'retain': read 'yes'"),
        ({"url": "http://h", "expiry": "0"}, "option 'expiry': read '0'"),
        ({"url": "http://h", "userProperties": "[1]"}, "option 'userProperties': read '[1]'"),
        ({"url": "http://h", "userProperties": '{"a": 1}'}, "allowed: a JSON object of texts"),
        ({"url": "http://h", "writeId": "a b"}, "option 'writeId': read 'a b'"),
        ({"url": "http://h", "token": "a", "tokenFile": "b"}, "'token' and 'tokenFile'"),
    ],
)
def test_a_wrong_option_is_named(texts: dict[str, str], told: str) -> None:
    """With what was read and what is allowed."""
    with pytest.raises(OptionError) as raised:
        read_sink_options(texts)
    assert told in raised.value.text
