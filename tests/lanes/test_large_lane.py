from __future__ import annotations

from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.lanes.large_lane import connect_properties, user_properties


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
