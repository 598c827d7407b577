from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


# Optional: a pytest-asyncio that does not know it runs everything on asyncio's own loop.
@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """Run the tests of this folder on asyncio's loop and on uvloop, which the program uses."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
