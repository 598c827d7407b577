from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker

VERSIONS = ("31", "311", "5")

READY = (f"ready/{number}" for number in itertools.count())
"""A topic for each subscriber to see that it has subscribed."""


def publish(broker: BrokerProcess, topic: str, *options: str, stdin: bytes = b"") -> None:
    """Run mosquitto_pub; it returns once the message is acknowledged."""
    command = ["mosquitto_pub", "-p", str(broker.port), "-t", topic, *options]
    subprocess.run(command, input=stdin, check=True, timeout=SECONDS)


@contextmanager
def subscribed(
    broker: BrokerProcess, *options: str, form: str = "%t %q %r %p"
) -> Iterator[subprocess.Popen[str]]:
    """Run mosquitto_sub for a block that begins when its subscriptions are made.

    Its first message is a retained one that only it subscribes to.
    """
    ready = next(READY)
    publish(broker, ready, "-r", "-m", "ready")
    command = ["mosquitto_sub", "-p", str(broker.port), "-t", ready, *options]
    command += ["-W", str(int(SECONDS)), "-F", form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], n_lines: int) -> list[str]:
    """Return the next lines of a subscriber, without their ends."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(n_lines)]


@pytest.mark.parametrize("version", VERSIONS)
def test_will_comes_when_a_client_is_killed(broker: BrokerProcess, version: str) -> None:
    """A client that goes without DISCONNECT has its will published [MQTT-3.1.2-8]."""
    topic = f"will/{version}"
    will = ("--will-topic", topic, "--will-payload", "gone", "--will-qos", "1", "-V", version)
    with subscribed(broker, "-t", topic, "-q", "1") as subscriber:
        with subscribed(broker, "-t", "none", *will) as dying:
            dying.kill()
        assert lines(subscriber, 1) == [f"{topic} 1 0 gone"]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_will_comes_when_a_client_says_goodbye(broker: BrokerProcess, version: str) -> None:
    """A client that disconnects in order has its will removed [MQTT-3.1.2-10]."""
    topic = f"no-will/{version}"
    will = ("--will-topic", topic, "--will-payload", "gone", "-V", version)
    with subscribed(broker, "-t", topic) as subscriber:
        publish(broker, "other", "-m", "data", *will)
        publish(broker, topic, "-m", "live")
        assert lines(subscriber, 1) == [f"{topic} 0 0 live"]


def test_wildcards_and_sys_topics(broker: BrokerProcess) -> None:
    """`+` and `#` match as they should, and neither matches `$SYS` [MQTT-4.7.2-1]."""
    with (
        subscribed(broker, "-t", "#", "-t", "+/broker/version") as everything,
        subscribed(broker, "-t", "wild/+/x", "-t", "$SYS/broker/version") as some,
    ):
        assert lines(some, 1)[0].startswith("$SYS/broker/version 0 1 Penstock ")
        publish(broker, "wild/a/x", "-m", "1")
        publish(broker, "wild/a/b/x", "-m", "2")
        publish(broker, "wild/b/x", "-m", "3")
        assert lines(some, 2) == ["wild/a/x 0 0 1", "wild/b/x 0 0 3"]
        seen: list[str] = []
        while not seen or seen[-1] != "wild/b/x 0 0 3":
            seen += lines(everything, 1)
        assert not [line for line in seen if line.startswith("$SYS")]
        assert {"wild/a/x 0 0 1", "wild/a/b/x 0 0 2"} <= set(seen)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_client_is_like_can_be_asked_for(broker: BrokerProcess, version: str) -> None:
    """Its documents come when a filter names it, here to itself; its id is escaped."""
    level = f"viewer%2F{version}"
    options = ("-i", f"viewer/{version}", "-V", version)
    root = "$SYS/broker/penstock/clients"
    with subscribed(broker, *options, "-t", f"{root}/{level}/+") as viewer:
        came = dict(line.split(" 0 0 ") for line in lines(viewer, 4))
    names = ("link", "withholding", "ledger", "subscriptions")
    assert list(came) == [f"{root}/{level}/{name}" for name in names]
    link, withholding, ledger, subscriptions = map(json.loads, came.values())
    assert subscriptions.pop("filters")[-1] == f"{root}/{level}/+"
    assert subscriptions == {"total": 2, "small": 0, "large": 0}
    assert "rtt_latest" in link
    assert withholding["last_decision"] is None
    assert ledger["delivered"] == 3  # what says that it has subscribed, and the two before


@pytest.mark.parametrize("version", ["311", "5"])
def test_members_of_a_share_get_equal_parts(broker: BrokerProcess, version: str) -> None:
    """Each message goes to one of them, and they take turns, in both versions."""
    topic = f"jobs/{version}"
    share = ("-V", version, "-q", "1", "-t", f"$share/workers/{topic}")
    with subscribed(broker, *share, form="%p") as one, subscribed(broker, *share, form="%p") as two:
        jobs = "".join(f"{number}\n" for number in range(20))
        publish(broker, topic, "-q", "1", "-l", stdin=jobs.encode())
        came = lines(one, 10) + lines(two, 10)
    assert sorted(map(int, came)) == list(range(20))


def test_a_publisher_may_use_topic_aliases(broker: BrokerProcess) -> None:
    """mosquitto_pub sends the topic with its first message alone."""
    with subscribed(broker, "-t", "alias/#") as subscriber:
        options = ("-V", "5", "-D", "publish", "topic-alias", "3", "-l")
        publish(broker, "alias/topic", *options, stdin=b"1\n2\n3\n")
        assert lines(subscriber, 3) == [f"alias/topic 0 0 {number}" for number in (1, 2, 3)]


def test_a_fleet_is_sent_to_another_server(tmp_path: Path) -> None:
    """Every client is refused by CONNACK, in the words of its version."""
    policy = anonymous_policy(mqtt={"server_reference": "b.example", "redirect": "permanent"})
    with running_broker(policy, tmp_path) as broker:
        for version, words in (("5", "Server moved"), ("311", "broker unavailable")):
            command = ["mosquitto_pub", "-p", str(broker.port), "-t", "t", "-n", "-V", version]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert done.returncode
            assert words in done.stderr + done.stdout


@pytest.mark.parametrize("version", ["31", "311"])
def test_two_clients_that_have_one_id_are_told(broker: BrokerProcess, version: str) -> None:
    """Each throws the other one out as fast as it reconnects; with MQTT 5, mosquitto_sub ends."""
    client_id = f"twin-{version}"
    command = ["mosquitto_sub", "-p", str(broker.port), "-V", f"mqttv{version}", "-i", client_id]
    twins = [subprocess.Popen([*command, "-t", "twins"]) for _ in range(2)]
    try:
        told = rf"WARNING .*client {client_id}: its connection was taken over 3 times in .* s, of "
        broker.wait_for_match(rf"{told}127.0.0.1:\d+ and 127.0.0.1:\d+.*: two clients may have")
    finally:
        for twin in twins:
            twin.kill()
            twin.wait()
