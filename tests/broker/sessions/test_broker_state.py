"""Routing and what all connections share, on a virtual clock."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from penstock.broker.events import Callbacks
from penstock.broker.extensions import DeliveryGate, LinkSampler
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import Disconnect
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


def test_publishes_of_a_client_that_are_refused_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All are counted; of each session the first is logged, and then ever fewer."""
    access = Access()
    access.refused = {("publish", "t")}
    broker = VirtualBroker(access=access)
    client = broker.connect("c")
    with caplog.at_level("INFO"):
        for _ in range(100):
            client.publish("t", b"x")
        broker.connect("other").publish("t", b"x")
    lines = [line for line in caplog.messages if "publish to t refused" in line]
    assert [line.rpartition("; ")[2] for line in lines] == [
        f"{n_refused} so far" for n_refused in (1, 2, 4, 8, 16, 32, 64, 1)
    ]
    assert sum(broker.core.counters.publish_refused.values()) == 101


def test_only_plain_brokers_take_the_fast_path() -> None:
    """A callback of single messages or packets sees all of them, so nothing may pass it by."""
    seen: list[object] = []
    for name in ("message_received", "message_routed", "packet_received", "packet_sent"):
        callbacks = Callbacks(**{name: (seen.append,)})
        assert not VirtualBroker(callbacks=callbacks).core.is_plain
    assert VirtualBroker(callbacks=Callbacks(client_connected=(seen.append,))).core.is_plain


def test_what_the_system_refuses_a_plugin_is_logged_with_its_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full disk is no fault of the program; an error that says nothing is shown by its name."""
    core = VirtualBroker().core
    core.guard.failed("Store", OSError(errno.ENOSPC, "No space left on device", "/spill"))
    core.guard.failed("Other", TimeoutError())
    assert caplog.messages == [
        "extension Store failed: [Errno 28] No space left on device: '/spill'",
        "extension Other failed: TimeoutError()",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]


def test_a_plugin_that_always_fails_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every fault is counted; the log has the first whole, and then ever fewer."""
    core = VirtualBroker().core
    for _ in range(100):
        core.guard.failed("Plugin", ValueError("x"))
    assert core.counters.extension_errors == {"Plugin": 100}
    assert len(caplog.records) == 7
    assert [bool(record.exc_info) for record in caplog.records] == [True] + [False] * 6


def test_a_subscriber_that_changes_its_version_is_served_in_the_new_one() -> None:
    """Plans are made for a version; a session may come back in another."""
    broker = VirtualBroker()
    publisher = broker.connect("p", 4)
    client = broker.connect("s", 4, clean_start=False)
    client.subscribe("t")
    for _ in range(2):
        publisher.publish("t", b"old")
    assert client.payloads() == [b"old", b"old"]
    client.lose()
    client = broker.connect("s", 5, clean_start=False)
    for _ in range(2):
        publisher.publish("t", b"new")
    assert client.payloads() == [b"new", b"new"]


def test_the_core_imports_no_io() -> None:
    """A1: bytes and `now` in, bytes and objects out; nothing of the network or the clock."""
    blocked = ["asyncio", "socket", "ssl", "selectors", "uvloop", "aiohttp", "amqtt", "pydantic"]
    program = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import penstock.broker.sessions.broker_state\n"
        "import penstock.broker.receiving.connection\n"
        "import penstock.broker.receiving.control_packets\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_new_client_leaves_the_plans_alone() -> None:
    """Clients that come and go must not slow down those who stay."""
    broker = VirtualBroker()
    plan = broker.core.tree.plan("t", b"t")
    broker.connect("a", 4)
    broker.connect("b", 5)
    assert broker.core.tree.plan("t", b"t") is plan


class FailingGate(DeliveryGate):
    """A gate that raises when a session has ended."""

    def forget(self, link: Link) -> None:
        """Raise."""
        raise ValueError(link)


class Failing(LinkSampler):
    """A sampler that raises wherever it is called."""

    def forget(self, link: Link) -> None:
        """Raise."""
        raise ValueError(link)

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Raise."""
        raise ValueError(link, fileno, now)

    def connected(self, link: Link, now: float) -> None:
        """Raise."""
        raise ValueError(link, now)

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Raise."""
        raise ValueError(link, packet_id, payload_bytes, now)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Raise."""
        raise ValueError(link, packet_id, now)


def test_a_sampler_or_gate_that_raises_harms_nobody() -> None:
    """Each fault is counted; the client is served as if there were no plugin."""
    broker = VirtualBroker(gate=FailingGate(), samplers=[Failing()])
    client = broker.connect("c")
    client.subscribe("t", 1)
    client.publish("t", b"x", qos=1)
    assert client.acknowledge() == [b"x"]
    client.send(Disconnect())
    assert len(broker.core.sessions) == 0
    assert broker.core.ledger().delivered == 1
    assert broker.core.counters.extension_errors == {"Failing": 4, "FailingGate": 1}
