from __future__ import annotations

import subprocess
import sys

import paho.mqtt.client
import pytest

import penstock.lanes.paho

IMPORT = """
import sys
import {module}
ours = {{name for name in sys.modules if name.startswith("penstock")}}
print(*sorted(name for name in ours if not name.startswith("penstock.lanes")))
"""


@pytest.mark.parametrize("name", [n for n in dir(paho.mqtt.client) if not n.startswith("__")])
def test_it_has_all_names_of_the_module_that_it_stands_for(name: str) -> None:
    """Those of another file of paho's are the same object."""
    ours, theirs = getattr(penstock.lanes.paho, name), getattr(paho.mqtt.client, name)
    assert ours is theirs or issubclass(ours, theirs)


@pytest.mark.parametrize("module", ["penstock.lanes.paho", "penstock.lanes.aiomqtt"])
def test_it_imports_nothing_else_of_penstock(module: str) -> None:
    """An application needs no broker."""
    printed = subprocess.check_output(
        [sys.executable, "-c", IMPORT.format(module=module)], text=True
    )
    assert printed.split() == ["penstock"]
