"""Message Expiry Interval of a stored message, counted down when it is received."""

from __future__ import annotations

import json

from penstock.broker.mqtt.expiry import EXPIRY, interval_left


def count_down(properties: str, expires_at: float, now: float) -> str:
    """Return properties in JSON with what is left of the Message Expiry Interval [MQTT-3.3.2-6].

    Args:
        properties: JSON object that has an interval.
        expires_at: seconds of the engine's clock.
        now: the same.
    """
    values = json.loads(properties)
    values[EXPIRY] = interval_left(expires_at, now)
    return json.dumps(values, ensure_ascii=False)
