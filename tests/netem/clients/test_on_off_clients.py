from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.netem.clients.on_off_plan import (
    ALWAYS,
    OnOffClientsPlan,
    OnOffPublisher,
    OnOffRecords,
    OnOffSubscriber,
)
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    penstock_command,
    reserved_port,
)
from penstock.netem.runs.on_off_run import run_on_off_clients

N_MESSAGES = 10
CREATED = [0.05 * number for number in range(N_MESSAGES)]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a broker."""
    directory = tmp_path_factory.mktemp("broker")
    with reserved_port() as found:
        policy = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{found}"}},
            "plugins": {ANONYMOUS: {"allow_anonymous": True}},
        }
        broker = RunningBroker("peers", penstock_command(directory, policy), directory)
        try:
            broker.wait_until_listening(found)
            yield found
        finally:
            broker.kill()


@pytest.fixture(scope="module")
def records(port: int, tmp_path_factory: pytest.TempPathFactory) -> OnOffRecords:
    """Publishers and subscribers that are always on, that are off at first, and that fail."""
    late = [(0.8, math.inf)]
    publishers = [
        OnOffPublisher("kept", "kept", late, CREATED),
        OnOffPublisher("lost", "lost", late, CREATED, qos=0),
        OnOffPublisher("worked", "worked", list(ALWAYS), CREATED, [0.01] * N_MESSAGES),
        OnOffPublisher("short", "short", late, CREATED, lifetime=0.001),
    ]
    subscribers = [
        OnOffSubscriber("any", ["kept", "lost", "short"], list(ALWAYS)),
        OnOffSubscriber("one", ["worked"], [(0.0, 0.2), (0.8, math.inf)], True, 1),
        OnOffSubscriber("none", ["worked"], [(30.0, math.inf)], keeps_session=False),
    ]
    plan = OnOffClientsPlan(port, 2.0, publishers, subscribers, 3.0)
    return run_on_off_clients(plan, tmp_path_factory.mktemp("peers"))


def worked(records: OnOffRecords, publisher: int) -> list[int]:
    """Return the numbers of a publisher's messages that were done, in order."""
    return [each.number for each in records.worked if each.publisher == publisher]


def test_a_publisher_that_is_off_keeps_qos_1(records: OnOffRecords) -> None:
    """And sends it in order when it is on; QoS 0 is lost."""
    assert worked(records, 0) == list(range(N_MESSAGES))
    assert not worked(records, 1)
    assert min(each.at for each in records.sent if each.publisher == 0) >= 0.8


def test_what_has_expired_in_its_publisher_is_not_sent(records: OnOffRecords) -> None:
    """Its lifetime is over when the publisher is on."""
    assert not [each for each in records.sent if each.publisher == 3]


def test_a_subscriber_with_a_session_does_everything_in_order(records: OnOffRecords) -> None:
    """What is not done when it goes off comes again; one without a session has nothing."""
    assert worked(records, 2) == list(range(N_MESSAGES))
    assert {each.subscriber for each in records.worked} == {0, 1}
    assert not [each for each in records.arrived if each.subscriber == 2]


def test_each_connection_is_told_apart(records: OnOffRecords) -> None:
    """By when it was asked for; the first one before the beginning."""
    asked = {each.asked_at for each in records.arrived if each.subscriber == 1}
    assert sum(each < 0 for each in asked) <= 1
    assert sum(each >= 0.8 for each in asked) == 1
    assert all(each.at >= each.asked_at for each in records.arrived)


def test_every_qos_1_message_is_answered(records: OnOffRecords) -> None:
    """With the broker's reason code."""
    answered = {(each.publisher, each.number) for each in records.answered}
    sent = {(each.publisher, each.number) for each in records.sent if each.publisher != 1}
    assert answered == sent
    assert {each.reason_code for each in records.answered} <= {0, 0x10}


def test_a_refused_connection_ends_the_process_with_its_reason(port: int, tmp_path: Path) -> None:
    """The log says which; nobody waits for it."""
    refused = OnOffSubscriber("s", ["#/wrong"], list(ALWAYS))
    plan = OnOffClientsPlan(port, 1.0, [], [refused])
    with pytest.raises(RunError, match="clients have ended with status 1"):
        run_on_off_clients(plan, tmp_path)
