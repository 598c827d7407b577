"""Guards of calls into plugins, for tests."""

from __future__ import annotations

import logging
from typing import NoReturn

import pytest

from penstock.broker.plugin_guard import Guard


class NoFaults(Guard):
    """A guard under which no plugin may raise."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"), {})

    def failed(self, plugin: object, error: Exception) -> NoReturn:
        """Fail the test."""
        pytest.fail(f"{plugin} raised {error!r}")


class Faults(Guard):
    """A guard that keeps the exceptions of plugins.

    Attributes:
        errors: the exceptions in their order.
    """

    __slots__ = ("errors",)

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"), {})
        self.errors: list[Exception] = []

    def failed(self, plugin: object, error: Exception) -> None:
        """Keep it."""
        super().failed(plugin, error)
        self.errors.append(error)
