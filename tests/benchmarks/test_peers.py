from __future__ import annotations

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.peers import Setting, find_program, stock_amqtt_policy


def test_program_that_is_not_installed_is_named() -> None:
    """The text says what is missing and what can be done."""
    with pytest.raises(BenchmarkError, match=r"no-such-broker is not installed; .*--peers"):
        find_program("no-such-broker")


def test_stock_policy_keeps_the_plugins_that_amqtt_ships() -> None:
    """Only the listener of aMQTT's own file is replaced."""
    policy = stock_amqtt_policy(Setting(1884))
    assert policy["listeners"] == {"default": {"type": "tcp", "bind": "127.0.0.1:1884"}}
    assert "amqtt.plugins.sys.broker.BrokerSysPlugin" in policy["plugins"]
