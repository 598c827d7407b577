from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.conformance.plugin import ConformancePlugin
from tests.helpers.effort import SUITE_PERCENT
from tests.helpers.forks import forked_programs
from tests.helpers.loopback import Loopback
from tests.helpers.tiers import MORE, SLOW, TOGETHER

# Where it is set, as container images do, each of the many programs that tests start compiles all
# that it imports, which takes longer than all else it does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the suite in the background has it ignore Ctrl+C. So would each program that a
# test starts, and that is to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair: the suite asserts no times. Examples are the
# same in each run, which so tells of a change and not of chance. Other profiles:
#   --hypothesis-profile thorough   the full numbers of examples, see tests/helpers/effort.py
#   --hypothesis-profile default    the full numbers, and others in each run
settings.register_profile(
    "thorough", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("suite", settings.get_profile("thorough"), max_examples=SUITE_PERCENT)
settings.load_profile("suite")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Keep docs/evidence/conformance.md, by a plugin that has an option."""
    pluginmanager.register(ConformancePlugin(), "conformance")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second tier, and start with those that take long.

    Raises:
        UsageError: a test has the fixture `spark` where it would start a Spark of its own.
    """
    second_tier = tuple(MORE)
    for item in items:
        if item.nodeid.startswith(second_tier):
            item.add_marker(pytest.mark.more)
        if "spark" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(TOGETHER[0]):
            raise pytest.UsageError(f"{item.nodeid}: has the fixture spark, and is not in TOGETHER")

    def place(item: pytest.Item) -> int:
        begins = [n for n, path in enumerate(SLOW) if item.nodeid.startswith(path)]
        return min(begins, default=len(SLOW))

    items.sort(key=place)


class Shares(LoadFileScheduling):
    """Gives processes one file at a time, each of `TOGETHER` as one.

    The tests of `SLOW` mostly wait. If all processes began with them, the processors would be idle,
    and busy later. So one process of at least three begins with the other tests.
    """

    def _assign_work_unit(self, node: Any) -> None:
        nodes = self.nodes
        if len(nodes) > 2 and node is nodes[0]:
            quick = (scope for scope in self.workqueue if not scope.startswith(SLOW))
            if (scope := next(quick, None)) is not None:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        together = next((paths[0] for paths in TOGETHER if nodeid.startswith(paths)), None)
        return together or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Share the tests out among the processes of `--dist loadfile`."""
    return Shares(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the collector of cycles, and hide from it what stays: all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, hide what stays from the collector, which took a quarter of all time.

    The items of the whole suite alone are hundreds of thousands of objects.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Yield a connection; a test may close either end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        subscriber = socket.create_connection(listener.getsockname())
        broker, _ = listener.accept()
    with broker, subscriber:
        yield Loopback(broker, subscriber)


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Let programs of Penstock that a test starts be forks: their starts are most of a test."""
    with forked_programs():
        yield
