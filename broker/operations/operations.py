"""The `Operations` of a broker: what its plugins may show to operators, and do for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.operations.client_rows import report_of, row_of

if TYPE_CHECKING:
    from penstock.broker.client_report import ClientReport
    from penstock.broker.counters import Metric
    from penstock.broker.operations_contract import ClientRow, Reloaded
    from penstock.broker.sessions.broker_state import Core


class BrokerOperations:
    """The `Operations` that a broker's plugins get."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without a broker; `attach` adds its core.

        Args:
            clock: returns monotonic seconds, as the core's `now`.
        """
        self._clock = clock
        self._core: Core | None = None
        self._reload: Callable[[], Awaitable[Reloaded]] | None = None

    def attach(self, core: Core, reload: Callable[[], Awaitable[Reloaded]] | None = None) -> None:
        """Show this core from now on.

        Args:
            core: of the broker.
            reload: reads all files of the program again.
        """
        self._core = core
        self._reload = reload

    async def reload(self) -> Reloaded:
        """Read all files again, as at SIGHUP."""
        assert self._reload is not None  # noqa: S101 (for the type checker)
        return await self._reload()

    # -- clients ------------------------------------------------------------------------------

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session, in any order."""
        return [] if self._core is None else self._core.sessions.client_ids()

    def row(self, client_id: str) -> ClientRow | None:
        """Return what a list shows of a client; None where it has no session."""
        session = None if self._core is None else self._core.sessions.get(client_id)
        return None if session is None else row_of(session, self._clock())

    def report(self, client_id: str) -> ClientReport | None:
        """Return a client's report; None where it has no session and is not remembered."""
        return None if self._core is None else report_of(self._core, client_id, self._clock())

    def withholding(self) -> Sequence[Metric]:
        """Return what became of all clients' large messages."""
        return () if self._core is None else self._core.outbox_rules.record.metrics()

    def proxy(self) -> None:
        """Return nothing: this is a broker."""
        return
