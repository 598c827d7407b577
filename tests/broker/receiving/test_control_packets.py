"""The page that says where each packet is handled has a row for each."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.broker.mqtt.enums import PacketType

PAGE = Path(__file__).parents[3] / "docs" / "code.md"


def test_every_packet_is_on_the_page() -> None:
    """Each of the fifteen has its row, in the order of the specification."""
    rows = re.findall(r"^\| ([A-Z]+) \| 3\.(\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(packet_type.name, str(packet_type)) for packet_type in PacketType]
