"""One word turns all fast paths off, and a plugin that looks at each message leaves them unused."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.door import SWITCH, SwitchError, core_class
from penstock.broker.fast_paths.fast_connection import FastConnection
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Publish
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


def test_fast_paths_are_on_unless_the_environment_says_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """`PENSTOCK_FAST_PATHS=off` gives a broker that knows the plain way alone."""
    monkeypatch.delenv(SWITCH, raising=False)
    assert core_class() is FastCore
    assert type(VirtualBroker().connect().connection) is FastConnection
    monkeypatch.setenv(SWITCH, "on")
    assert core_class() is FastCore
    monkeypatch.setenv(SWITCH, "off")
    assert core_class() is Core
    assert type(VirtualBroker().connect().connection) is Connection


def test_another_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the variable, what was read and what is allowed."""
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(SwitchError, match=r"PENSTOCK_FAST_PATHS: read 'no'; allowed: on, off"):
        core_class()


def test_access_control_whose_answers_last_leaves_the_fast_paths() -> None:
    """It is asked once for each topic and client."""
    access = Access()
    access.answers_last = True
    broker = VirtualBroker(core_class=FastCore, access=access)
    assert type(broker.connect().connection) is FastConnection


def test_a_broker_whose_access_control_is_asked_about_each_message_uses_none() -> None:
    """Each packet takes the plain way, as each message may be refused."""
    broker = VirtualBroker(core_class=FastCore, access=Access())
    assert type(broker.connect().connection) is Connection
    assert broker.core.take_unchecked is None


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_a_message_above_receive_maximum_is_not_retained(made_of: type[Core]) -> None:
    """Whichever way it takes: the client is closed before anything is done with the message."""
    broker = VirtualBroker(Limits(receive_maximum=2), core_class=made_of)
    publisher = broker.connect("p")
    for number in (1, 2, 3):
        publisher.send(Publish(f"t/{number}", b"x", qos=2, retain=True, packet_id=number))
    assert publisher.connection.client.is_closing
    assert sorted(broker.core.retained.by_topic) == ["t/1", "t/2"]
