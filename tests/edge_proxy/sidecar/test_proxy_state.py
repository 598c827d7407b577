from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import pytest

from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.outbox.message_counts import Ledger
from penstock.edge_proxy.sidecar.config import ProxyLimits
from penstock.edge_proxy.sidecar.proxy_state import ProxyState, describe
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate


def test_an_account_on_one_line() -> None:
    """Every place of the ledger is named."""
    ledger = Ledger()
    ledger.matched, ledger.delivered, ledger.expired, ledger.moved = 10, 4, 1, 2
    ledger.drop("queue_full", 2)
    ledger.drop("connection_lost")
    ledger.withheld_total, ledger.released_total = 3, 2
    assert describe(ledger) == (
        "messages matched 10, delivered 4, expired 1, dropped 3 (connection_lost 1, queue_full 2), "
        "left to the broker 2; withheld 3, released 2"
    )
    assert "dropped 0, left" in describe(Ledger())


class Broken(DeliveryGate):
    """A gate that raises over a topic."""

    def threshold_s(self, topic: str) -> int | None:
        """Fail."""
        raise RuntimeError(topic)


def test_a_gate_that_raises_makes_nothing_large_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its name is in the log and in the count, and the message is delivered."""
    shared = ProxyState(ProxyLimits(), logger=logging.getLogger("test.proxy"), gate=Broken())
    assert shared.topics.look_up(b"first").threshold_s == sys.maxsize
    assert shared.topics.look_up(b"second").threshold_s == sys.maxsize
    assert shared.extension_errors == {"Broken": 2}
    assert "extension Broken failed: RuntimeError('first')" in caplog.text


def test_what_a_connect_says_reaches_the_gate_and_nonsense_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in the broker, by the same plugin; a gate that wants to know nothing is told nothing."""
    caplog.set_level("INFO")
    gate = WithholdingGate(WithholdingConfig())
    shared = ProxyState(ProxyLimits(), logger=logging.getLogger("test.proxy"), gate=gate)
    link = Link("far")
    shared.introduce(link, [("threshold_l", "0.75")])
    assert (link.asked_threshold_l, shared.user_properties_ignored) == (0.75, 0)
    shared.introduce(link, [("threshold_l", "-1")])
    assert (link.asked_threshold_l, shared.user_properties_ignored) == (None, 1)
    assert "client far: CONNECT: user property threshold_l: read '-1'; allowed: " in caplog.text
    ProxyState(ProxyLimits(), logger=logging.getLogger("test.proxy")).introduce(link, [("a", "b")])


class Failing(WithholdingGate):
    """A gate with a fault."""

    def connected(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> str:
        """Fail."""
        raise RuntimeError(f"{link.client_id} {user_properties}")


def test_gate_that_fails_over_a_connect_keeps_nobody_out() -> None:
    """A plugin's fault is counted, and is not the client's."""
    gate = Failing(WithholdingConfig())
    shared = ProxyState(ProxyLimits(), logger=logging.getLogger("test.proxy"), gate=gate)
    shared.introduce(Link("far"), [])
    assert shared.extension_errors == {"Failing": 1}
