from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.options import (
    OPTION_NAMES,
    REDIS_OPTION_NAMES,
    RedisOptions,
    SourceOptions,
    read_options,
)

NEEDED = {"url": "http://127.0.0.1:8080", "queue": "telemetry"}


def test_a_micro_batch_is_limited_in_rows_and_bytes_by_default() -> None:
    """One of large messages fits into the memory that Spark gives Java."""
    options = read_options({"url": "http://h:1", "queue": "q"})
    assert (options.max_rows_per_trigger, options.max_bytes_per_trigger) == (250_000, 2**27)


def test_defaults_are_filled_in() -> None:
    """Only url and queue must be given."""
    assert read_options(NEEDED) == SourceOptions(url="http://127.0.0.1:8080", queues=("telemetry",))


EVERY = {
    "url": "http://127.0.0.1:8080",
    "QUEUE": "telemetry, alarms",
    "group": "reports",
    "startingPosition": "earliest",
    "endingPosition": "2026-11-23T04:00:00+00:00",
    "columns": "topic,payload",
    "topicfilter": "a/#,+/b",
    "MAXROWSPERTRIGGER": "7",
    "maxBytesPerTrigger": "9 kB",
    "minPartitions": "8",
    "largeAboveBytes": "1 MB",
    "failOnDataLoss": "False",
    "token": "secret",
    "caFile": "ca.pem",
    "waitSeconds": "0",
    "timeoutSeconds": "1.5",
    "retrySeconds": "0",
}


def test_every_option_is_read() -> None:
    """Each option's text changes its value, in any case of its name."""
    names = {name.lower() for name in OPTION_NAMES}
    assert {name.lower() for name in EVERY} | {"tokenfile"} == names
    options = SourceOptions(
        url="http://127.0.0.1:8080",
        queues=("telemetry", "alarms"),
        group="reports",
        starting_position="earliest",
        ending_position=1_795_406_400.0,
        columns=("topic", "payload"),
        topic_filters=("a/#", "+/b"),
        max_rows_per_trigger=7,
        max_bytes_per_trigger=9_000,
        min_partitions=8,
        large_above_bytes=1_000_000,
        fail_on_data_loss=False,
        token="secret",
        ca_file="ca.pem",
        wait_seconds=0.0,
        timeout_seconds=1.5,
        retry_seconds=0.0,
    )
    assert read_options(EVERY) == options
    assert read_options({**NEEDED, "tokenFile": "token"}).token_file == "token"
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Latest", "latest"),
        ("group", "group"),
        ("1700000000.5", 1_700_000_000.5),
        ("2026-11-23T04:00:00Z", 1_795_406_400.0),
        ('{"telemetry": {"0": 17, "1": -2, "2": -1}}', {"telemetry": {0: 17, 1: -2, 2: -1}}),
        ('{"telemetry": {"incarnation": "x", "next": {"0": 3}}}', {"telemetry": {0: 3}}),
    ],
)
def test_a_position_is_a_word_a_time_or_offsets(text: str, place: object) -> None:
    """Offsets also as Spark's progress reports show them."""
    assert read_options({**NEEDED, "startingPosition": text}).starting_position == place


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
        ("queue", " ", "names, each once"),
        ("queue", "a,a", "names, each once"),
        ("startingPosition", "tomorrow", "group, earliest, latest, a time with its zone"),
        ("startingPosition", "2026-11-23T04:00:00", "a time with its zone"),
        ("startingPosition", '{"telemetry": {"0": "5"}}', "JSON of queues"),
        ("startingPosition", '{"telemetry": {"0": -3}}', "JSON of queues"),
        ("startingPosition", '{"alarms": {"0": 5}}', "of each queue of the query: 'telemetry'"),
        ("endingPosition", "earliest", "allowed: latest, a time"),
        ("columns", "topic,paylod", "(did you mean 'payload'?); allowed are queue, "),
        ("columns", "topic,topic", "names, each once"),
        ("topicFilter", "a/#/b", "# alone, as the last level"),
        ("topicFilter", "$share/g/a", "a topic filter without $share/"),
        ("topicFilter", "[1]", "MQTT topic filters"),
        ("group", " ", "a name"),
        ("maxRowsPerTrigger", "0", "a whole number from 1"),
        ("maxRowsPerTrigger", "many", "a whole number from 1"),
        ("minPartitions", "1.5", "a whole number from 1"),
        ("maxBytesPerTrigger", "-1", "a number of bytes from 1"),
        ("maxBytesPerTrigger", "1,000 kB", "a number of bytes from 1"),
        ("waitSeconds", "-1", "a number of seconds from 0"),
        ("timeoutSeconds", "0", "a number of seconds above 0"),
        ("timeoutSeconds", "nan", "a number of seconds above 0"),
        ("retrySeconds", "-1", "a number of seconds from 0"),
        ("retrySeconds", "soon", "a number of seconds from 0"),
        ("failOnDataLoss", "yes", "true or false"),
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


def test_one_token_is_given_in_one_way() -> None:
    """Two might differ."""
    with pytest.raises(OptionError, match="'token' and 'tokenFile': read both"):
        read_options({**NEEDED, "token": "a", "tokenFile": "b"})


def test_every_attribute_has_an_option() -> None:
    """An option cannot be added without being read."""
    assert len(fields(SourceOptions)) == len((*OPTION_NAMES, "redis"))
    assert len(fields(RedisOptions)) == len(REDIS_OPTION_NAMES)


def test_the_documentation_lists_every_option_with_its_default() -> None:
    """A user reads the table, not the source."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    table = text.partition("| option | default |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w.]*) ?\|", table, re.MULTILINE))
    assert sorted(rows) == sorted(OPTION_NAMES)
    told = {name: text for name, text in rows.items() if text}
    defaults = read_options(NEEDED)
    assert read_options(NEEDED | told) == defaults
    assert len(told) == 8


# -- Redis -------------------------------------------------------------------------------------


def test_the_documentation_lists_every_option_of_redis() -> None:
    """With its defaults."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    table = text.partition("## Straight from Redis")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`redis.*?) \| ([\w.]*) ?\|", table, re.MULTILINE)
    names = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert names == list(REDIS_OPTION_NAMES)
    told = {names.strip("`"): default for names, default in rows if default}
    given = NEEDED | {"redis": "h:1"}
    assert read_options(given | told) == read_options(given)
    assert told.keys() == {"redisDb", "redisPrefix"}


def test_servers_of_redis_are_read() -> None:
    """One server, sentinels or a cluster, each with what belongs to it."""
    of_sentinels = {
        "redisSentinels": "one:26379, [::1]:26379",
        "redisMaster": "penstock",
        "redisSentinelPasswordFile": "s",
        "redisSentinelUser": "u",
        "redisDb": "3",
    }
    files = {"redisCaFile": "ca", "redisCertificateFile": "c", "redisKeyFile": "k"}
    login = {"redisUser": "reader", "redisPasswordFile": "p", "redisPrefix": "mine"}
    for given, expected in (
        ({"redis": "h:6379"}, RedisOptions(server=("h", 6379))),
        (
            of_sentinels,
            RedisOptions(
                sentinels=(("one", 26379), ("::1", 26379)),
                master="penstock",
                sentinel_user="u",
                sentinel_password_file="s",
                db=3,
            ),
        ),
        (
            {"redisCluster": "a:1,b:2", **files, **login},
            RedisOptions(
                cluster=(("a", 1), ("b", 2)),
                ca_file="ca",
                certificate_file="c",
                key_file="k",
                user="reader",
                password_file="p",
                prefix="mine",
            ),
        ),
    ):
        options = read_options(NEEDED | given)
        assert options.redis == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"redisUser": "u"}, "'redisUser': read none of redis, redisSentinels, redisCluster"),
        ({"redis": "h:1", "redisCluster": "h:1"}, "read redis and redisCluster of"),
        ({"redis": "h"}, "option 'redis': read 'h'; allowed: HOST:PORT, with a port"),
        ({"redis": "h:1,i:2"}, "option 'redis': read 'h:1,i:2'; allowed: one HOST:PORT"),
        ({"redisCluster": "h:1", "redisDb": "1"}, "'redisDb': read 1; allowed: 0 on a cluster"),
        ({"redis": "h:1", "redisDb": "-1"}, "'redisDb': read '-1'; allowed: a whole number from 0"),
        ({"redisSentinels": "h:1"}, "option 'redisMaster' is missing"),
        ({"redis": "h:1", "redisMaster": "m"}, "'redisMaster': read one; allowed: with redisSen"),
        ({"redis": "h:1", "redisUser": "u"}, "'redisUser': .* allowed: with redisPasswordFile"),
        ({"redis": "h:1", "redisKeyFile": "k"}, "'redisKeyFile': .* with redisCaFile and"),
    ],
)
def test_options_of_redis_that_do_not_belong_together_are_told(
    given: dict[str, str], told: str
) -> None:
    """With what is allowed."""
    with pytest.raises(OptionError, match=told):
        read_options(NEEDED | given)
