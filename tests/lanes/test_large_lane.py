from __future__ import annotations

import socket
from typing import Any

import pytest
from paho.mqtt.client import MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.lanes.client import Client
from penstock.lanes.large_lane import LargeLane, connect_properties, user_properties


def test_properties_of_the_application_are_kept_and_not_changed() -> None:
    """Both lanes add their own user properties to those of the CONNECT."""
    asked: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.UserProperty = ("app", "1")
    asked.SessionExpiryInterval = 60
    properties = connect_properties(asked, lane_of="other", size="large")
    assert user_properties(properties) == {
        "app": "1",
        "penstock-lane-of": "other",
        "penstock-size": "large",
    }
    assert vars(properties)["SessionExpiryInterval"] == 60
    assert user_properties(asked) == {"app": "1"}
    assert user_properties(None) == {}


@pytest.mark.parametrize("socket_is_closed", [True, False])
def test_a_client_may_disconnect_while_its_large_lane_connects(*, socket_is_closed: bool) -> None:
    """In another thread than the loop's, which goes on: the lane's socket is closed."""
    first = Client(CallbackAPIVersion.VERSION2, "first", protocol=MQTTv5)
    lane = LargeLane(first, "first.large-lane")
    lane._host, lane._port = "localhost", 1883
    ours, theirs = socket.socketpair()
    if socket_is_closed:
        ours.close()
    lane._dialled.append(ours)
    lane.has_left = True
    lane._connect()
    assert lane.socket() is None
    assert ours.fileno() == -1
    theirs.close()
