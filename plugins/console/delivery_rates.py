"""Messages per second of each client, between two looks at all of them."""

from __future__ import annotations

from typing import Final

from penstock.broker.operations_contract import ClientRow

LEAST_SECONDS: Final = 0.5
"""Counters that are closer than this give no rate."""

MOST_SECONDS: Final = 15.0
"""Counters that are further apart give none of this moment."""


class DeliveryRates:
    """What was counted at the last looks, however many look."""

    def __init__(self) -> None:
        self._earlier: tuple[float, dict[str, int]] = (0.0, {})
        self._latest: tuple[float, dict[str, int]] = (0.0, {})

    def begin(self, now: float) -> None:
        """Begin a look at all clients, at monotonic seconds."""
        if now - self._latest[0] >= LEAST_SECONDS:
            self._earlier, self._latest = self._latest, (now, {})

    def with_rate(self, row: ClientRow, now: float) -> ClientRow:
        """Return a row with its rate, where there is one; `now` is that of `begin`."""
        self._latest[1].setdefault(row.client_id, row.delivered)
        at, counted = self._earlier
        before, seconds = counted.get(row.client_id), now - at
        if before is None or seconds > MOST_SECONDS:
            return row
        rate = max(0, row.delivered - before) / seconds  # 0 of a session that began again
        return row._replace(delivered_per_second=round(rate, 3))
