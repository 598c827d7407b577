"""Real clients share a stream, and one of them is lost without its messages."""

from __future__ import annotations

import queue
from collections import Counter

from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import SECONDS, BrokerProcess

SHARE = "$share/workers/jobs/#"
N_JOBS = 300

Arrived = queue.Queue[tuple[str, bytes]]


def worker(broker: BrokerProcess, name: str, arrived: Arrived, *, answers: bool) -> PahoClient:
    """Connect a member of the share whose session lasts.

    Args:
        broker: to connect to.
        name: Client Identifier.
        arrived: takes (name, payload) of each message.
        answers: acknowledges what comes.
    """
    client = PahoClient(broker.port, name, manual_ack=not answers)
    client.paho.on_message = lambda _c, _u, message: arrived.put((name, bytes(message.payload)))
    assert client.connect(properties=connect_properties(SessionExpiryInterval=600))
    assert client.subscribe(SHARE, 1)
    return client


def publish(broker: BrokerProcess, jobs: list[bytes]) -> None:
    """Publish jobs at QoS 1, all of them acknowledged."""
    with PahoClient(broker.port) as publisher:
        publisher.connect()
        for number, job in enumerate(jobs):
            publisher.publish(f"jobs/{number % 7}", job)


def test_members_share_a_stream_and_losing_one_loses_nothing(broker: BrokerProcess) -> None:
    """What the lost member had and never acknowledged is done by the others, all of it."""
    arrived: Arrived = queue.Queue()
    jobs = [b"%d" % number for number in range(N_JOBS)]
    lost = worker(broker, "lost", arrived, answers=False)
    with (
        worker(broker, "one", arrived, answers=True),
        worker(broker, "other", arrived, answers=True),
    ):
        publish(broker, jobs)
        came = [arrived.get(timeout=SECONDS) for _ in jobs]
        assert {payload for _, payload in came} == set(jobs)
        shares = Counter(name for name, _ in came)
        assert min(shares[name] for name in ("lost", "one", "other")) >= N_JOBS // 6
        lost.paho.loop_stop()
        sock = lost.paho.socket()
        assert sock is not None
        sock.close()
        again = [arrived.get(timeout=SECONDS) for _ in range(shares["lost"])]
        assert Counter(name for name, _ in again)["lost"] == 0
        assert {p for _, p in again} == {p for name, p in came if name == "lost"}


def test_jobs_that_come_while_all_are_away_are_shared_by_those_that_return(
    broker: BrokerProcess,
) -> None:
    """Nothing waits for one member's return while another one is there."""
    arrived: Arrived = queue.Queue()
    for name in ("away", "back"):
        worker(broker, name, arrived, answers=True).close()
    jobs = [b"%d" % number for number in range(100)]
    publish(broker, jobs)
    with worker(broker, "back", arrived, answers=True):
        came = [arrived.get(timeout=SECONDS) for _ in jobs]
    assert {payload for _, payload in came} == set(jobs)
