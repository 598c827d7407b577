from __future__ import annotations

import logging

import pytest

from broker.ledger import Ledger
from broker.outbox import OpenGate
from edge_proxy.config import ProxyLimits
from edge_proxy.shared import Shared, describe


def test_an_account_on_one_line() -> None:
    """Every place of the ledger is named, and what is left is what nobody else has."""
    ledger = Ledger()
    ledger.matched, ledger.delivered, ledger.expired = 10, 4, 1
    ledger.drop("queue_full", 2)
    ledger.drop("connection_lost")
    ledger.withheld_total, ledger.released_total = 3, 2
    assert describe(ledger) == (
        "messages matched 10, delivered 4, expired 1, dropped 3 (connection_lost 1, queue_full 2), "
        "left to the broker 2; withheld 3, released 2"
    )
    assert "dropped 0, left" in describe(Ledger())


def test_what_a_plugin_raised_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Its name is in the log and in the count."""
    shared = Shared(ProxyLimits(), logger=logging.getLogger("test.proxy"))
    assert isinstance(shared.gate, OpenGate)
    shared.on_gate_error(RuntimeError("first"))
    shared.on_gate_error(RuntimeError("second"))
    assert shared.extension_errors == {"OpenGate": 2}
    assert "extension OpenGate failed: RuntimeError('first')" in caplog.text
