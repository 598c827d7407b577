"""`paho.mqtt.client` with two lanes: ``import penstock.lanes.paho as mqtt`` in place of it."""

from __future__ import annotations

from typing import Any

import paho.mqtt.client as _paho
from paho.mqtt.client import *  # noqa: F403 (it stands for that module)

from penstock.lanes.client import Client as Client  # noqa: PLC0414


def __getattr__(name: str) -> Any:
    return getattr(_paho, name)
