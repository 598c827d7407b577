"""Decides when an uplink connects again, and what its CONNECT leaves out then."""

from __future__ import annotations

import random
from logging import Logger
from typing import Final

from penstock.broker.mqtt.enums import MQTT_5
from penstock.edge_proxy.uplink.config import ReconnectKeys
from penstock.edge_proxy.uplink.connecting import NO_BRIDGES, NO_RETAIN, RelaySettings
from penstock.edge_proxy.upstream import Upstream

SHORT_SECONDS: Final = 10.0
"""A shorter connection may have been taken over by another client."""

SHORT_IN_A_ROW: Final = 3
"""The log tells of so many short connections in a row."""

SUSPICIOUS_FAILURES: Final = 1
"""While the uplink finds out at which message the cloud's broker ends the connection, no wait is
longer than after so many failures: nothing passes meanwhile."""

CONCEDED: Final = frozenset({NO_BRIDGES, NO_RETAIN})
"""Reasons of refusals after which the uplink connects again at once, with less in its CONNECT."""

REFUSED_WILLS: Final = 2
"""After so many connections in a row that were closed at a CONNECT with a retained will, the will
is taken for the cause."""


class Retries:
    """The waits between attempts: each is twice as long as the one before."""

    def __init__(self, keys: ReconnectKeys, rng: random.Random) -> None:
        """Begin with the first wait."""
        self.n_short = 0
        self._keys = keys
        self._rng = rng
        self._n_failures = 0

    def ended(self, seconds: float, *, was_accepted: bool) -> None:
        """Note that a connection has ended, or that an attempt has failed after some seconds."""
        is_short = was_accepted and seconds < SHORT_SECONDS
        self.n_short = self.n_short + 1 if is_short else 0

    def is_stable(self, seconds: float, *, was_accepted: bool) -> bool:
        """Say whether a connection has stood for so long that it was a success."""
        return was_accepted and seconds >= self._keys.stable_seconds

    def succeeded(self) -> None:
        """Begin anew with the first wait."""
        self._n_failures = 0

    def wait_seconds(self, *, is_suspicious: bool) -> float:
        """Return how long to wait before the next attempt, and count it."""
        if is_suspicious:
            self._n_failures = min(self._n_failures, SUSPICIOUS_FAILURES)
        keys = self._keys
        longest = min(keys.max_seconds, keys.min_seconds * 2.0 ** min(self._n_failures, 30))
        self._n_failures += 1
        return longest * self._rng.uniform(0.5, 1.0)


class Concessions:
    """What a CONNECT leaves out because the broker at an address has refused it.

    A broker that knows no bridges says so by a return code, and one that retains nothing by a
    reason code of MQTT 5: this counts from then on. With MQTT 3.1.1, one that retains nothing hangs
    up, which may have any cause: after two such ends in a row the will of the next CONNECT is not
    retained. Where that one is accepted, later connections need one refusal for it, so that a
    broker which was only ill gets a retained will again. An address that has once accepted a
    retained will gets no other: a load balancer without a server closes connections, too.
    """

    def __init__(self, name: str, logger: Logger) -> None:
        """Begin with none."""
        self._name = name
        self._logger = logger
        self._knows_no_bridges: set[Upstream] = set()
        self._retains_nothing: set[Upstream] = set()
        self._retains: set[Upstream] = set()
        self._n_refused: dict[Upstream, int] = {}
        self._told: set[Upstream] = set()

    def may_be_bridge(self, upstream: Upstream) -> bool:
        """Say whether the next CONNECT to an address may have the bridge bit."""
        return upstream not in self._knows_no_bridges

    def may_retain(self, upstream: Upstream) -> bool:
        """Say whether the will of the next CONNECT to an address may be retained."""
        n_refused = self._n_refused.get(upstream, 0)
        return upstream not in self._retains_nothing and n_refused < REFUSED_WILLS

    def refused(self, upstream: Upstream, reason: str, settings: RelaySettings | None) -> bool:
        """Note that a connection has ended before it was accepted.

        Returns:
            Whether the next CONNECT leaves something out for it.
        """
        if reason == NO_BRIDGES:
            self._knows_no_bridges.add(upstream)
            self._logger.warning(
                "uplink %s: %s refuses the bridge bit (return code 1), so that the uplink connects "
                "without it: the broker sends back what it publishes, where rules of up and down "
                "have topics in common, and clears the retain flag of what comes down",
                self._name,
                upstream,
            )
            return True
        if reason == NO_RETAIN:
            self._retains_nothing.add(upstream)
            return True
        may_be_will = (
            reason == "closed"
            and settings is not None
            and settings.version != MQTT_5
            and upstream not in self._retains
            and settings.has_retained_will
        )
        n_refused = self._n_refused.get(upstream, 0) + 1 if may_be_will else 0
        self._n_refused[upstream] = n_refused
        return n_refused >= REFUSED_WILLS

    def accepted(self, upstream: Upstream, settings: RelaySettings) -> None:
        """Note that a connection was accepted, and tell once that its will is not retained."""
        if settings.retains_cloud_state:
            self._n_refused[upstream] = 0
            if settings.has_retained_will:
                self._retains.add(upstream)
            return
        self._n_refused[upstream] = REFUSED_WILLS - 1
        if upstream not in self._told:
            self._told.add(upstream)
            self._logger.warning(
                "uplink %s: %s refuses a will that is retained, and takes one that is not: the "
                "state of the uplink is told there, and not retained",
                self._name,
                upstream,
            )
