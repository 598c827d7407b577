"""The page that says where each packet is handled names what is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from penstock.broker.mqtt.enums import PacketType

PAGE = Path(__file__).parents[3] / "docs" / "code.md"


def test_every_name_on_the_page_exists() -> None:
    """A fresh reader who follows it finds a function or a class."""
    names = re.findall(r"`(penstock\.(?:broker|plugins)\.[\w.]+)`", PAGE.read_text())
    assert len(names) > 30
    for name in names:
        found = None
        rest: list[str] = []
        module = name
        while found is None:
            try:
                found = importlib.import_module(module)
            except ModuleNotFoundError:
                module, _, last = module.rpartition(".")
                rest.insert(0, last)
        for attribute in rest:
            found = getattr(found, attribute, None)
            assert found is not None, name


def test_every_packet_is_on_the_page() -> None:
    """Each of the fifteen has its row, in the order of the specification."""
    rows = re.findall(r"^\| ([A-Z]+) \| 3\.(\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(packet_type.name, str(packet_type)) for packet_type in PacketType]
