"""Whose message is large, and whose path is congested: by listener, client id and CONNECT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paho_client import MQTT_3_1_1, PahoClient, connect_properties
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.system.test_mosquitto_clients import lines, subscribed

PLUGINS: dict[str, Any] = {
    "probing": {"sources": ["puback"], "max_age_seconds": 3600.0},
    "withholding": {
        # No round trip is as short as a microsecond: whatever is large stays.
        "policy": "conservative",
        "threshold_l": 1e-6,
        "max_withhold": 3600.0,
        "threshold_l_by_client": {"far-*": 3600.0},
        "listeners": {
            "field": {"threshold_s": 1_000},
            "lan": {"threshold_s": None},
            "near": {"threshold_l": 3600.0},
        },
    },
}

NAMES = ("default", "field", "lan", "near")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Return a broker whose listeners have thresholds of their own."""
    listeners = {name: {"bind": "127.0.0.1:0"} for name in NAMES}
    policy = anonymous_policy(PLUGINS, listeners=listeners, sys_interval=0.1)
    with running_broker(policy, tmp_path) as running:
        for name in NAMES:
            running.wait_for_log(f"listener {name}: listening")
        yield running
        assert running.stop() == 0
        assert "ERROR" not in running.log


def wait_for_figure(client: PahoClient, name: str, is_reached: Callable[[int], bool]) -> None:
    """Wait until a figure of the broker's own is what it should be."""
    assert client.subscribe(f"$SYS/broker/penstock/{name}")
    while not is_reached(int(client.message().payload)):
        pass


def time_paths(publisher: PahoClient, root: str, came: Callable[[str], bool]) -> None:
    """See that the broker has an estimate of each path: an acknowledgement of a small message.

    Who has got the third has acknowledged the first, and what the broker handles after another
    message it handles after that acknowledgement, too. Not so who has got the second: paho's
    client takes what has come before it sends.
    """
    for topic in (f"{root}/first", f"{root}/second", f"{root}/third"):
        publisher.publish(topic, b"", 1)
        assert came(topic)
    publisher.publish("elsewhere", b"", 1)


def test_threshold_s_is_that_of_the_subscribers_listener(broker: BrokerProcess) -> None:
    """Each listener's subscriber gets those of three sizes that are small there."""
    sizes = {"100": 100, "5000": 5_000, "50000": 50_000}
    subscribers = {
        name: PahoClient(broker.ports[name], name, MQTT_3_1_1)
        for name in ("default", "field", "lan")
    }
    with PahoClient(broker.port, "publisher") as publisher:
        assert publisher.connect()
        for client in subscribers.values():
            assert client.connect()
            assert client.subscribe("size/#", 1)
        time_paths(
            publisher,
            "size",
            lambda topic: all(client.message().topic == topic for client in subscribers.values()),
        )
        for topic, size in sizes.items():
            publisher.publish(f"size/{topic}", bytes(size), 1)
        publisher.publish("size/last", b"", 1)
        for name, small in (
            ("default", ["100", "5000"]),
            ("field", ["100"]),
            ("lan", ["100", "5000", "50000"]),
        ):
            client = subscribers[name]
            came = [client.message().topic.removeprefix("size/") for _ in range(len(small) + 1)]
            assert came == [*small, "last"]
        wait_for_figure(publisher, "ledger/withheld", lambda n_messages: n_messages == 3)
        for client in subscribers.values():
            client.close()


def gets_large(client: PahoClient, publisher: PahoClient) -> bool:
    """Say whether a subscriber of `site/#` whose path has been timed gets a large message."""
    time_paths(publisher, "site", lambda topic: client.message().topic == topic)
    publisher.publish("site/large", bytes(50_000), 1)
    publisher.publish("site/last", b"", 1)
    topic = client.message().topic
    if topic == "site/large":
        assert client.message().topic == "site/last"
    return topic == "site/large"


@pytest.mark.parametrize(
    ("listener", "client_id", "said", "goes"),
    [
        ("default", "site", None, False),
        ("near", "site", None, True),
        ("default", "site", "30", True),
        ("near", "site", "0.000001", False),
        ("default", "far-7", "0.000001", True),
    ],
)
def test_threshold_l_is_what_the_one_to_be_heard_first_says(
    broker: BrokerProcess, listener: str, client_id: str, said: str | None, *, goes: bool
) -> None:
    """A pattern of its id, then the subscriber itself, then its listener, then the general one."""
    options: dict[str, Any] = {}
    if said is not None:
        options["properties"] = connect_properties(UserProperty=[("threshold_l", said)])
    with (
        PahoClient(broker.ports[listener], client_id) as site,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert site.connect(**options)
        assert site.subscribe("site/#", 1)
        assert publisher.connect()
        assert gets_large(site, publisher) is goes


def test_stock_client_says_its_threshold_on_its_command_line(broker: BrokerProcess) -> None:
    """mosquitto_sub with `-D connect user-property threshold_l 30`: nothing is withheld."""
    said = ["-V", "5", "-D", "connect", "user-property", "threshold_l", "30"]
    with (
        subscribed(broker, "-q", "1", "-t", "site/#", *said, form="%t %l") as site,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert publisher.connect()
        time_paths(publisher, "site", lambda topic: lines(site, 1) == [f"{topic} 0"])
        publisher.publish("site/large", bytes(50_000), 1)
        assert lines(site, 1) == ["site/large 50000"]


def test_nonsense_is_ignored_logged_and_counted(broker: BrokerProcess) -> None:
    """The client is served as one that says nothing; a line for each CONNECT, and a figure."""
    values = ["soon", "-1", "nan", "1e400", "\x1b[2J", "9" * 60_000]
    with PahoClient(broker.port, "publisher") as publisher:
        assert publisher.connect()
        for number, value in enumerate(values):
            with PahoClient(broker.port, f"site-{number}") as site:
                nonsense = connect_properties(UserProperty=[("threshold_l", value)])
                assert site.connect(properties=nonsense)
                broker.wait_for_log(f"client site-{number}: CONNECT: user property threshold_l: ")
        wait_for_figure(publisher, "user_properties_ignored", lambda n: n == len(values))
    told = [line for line in broker.log.splitlines() if "user property" in line]
    assert len(told) == len(values)
    assert all(line.isprintable() and len(line) < 300 for line in told)
    assert "read 'soon'; allowed: seconds above 0, 900 at most, such as 0.5; ignored" in told[0]
