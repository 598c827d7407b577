"""Sinks that come and go while the broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.mqtt.topics import validate_topic_filter

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.sessions.broker_state import Core


class CoreSinks:
    """The `SinkRoutes` that a broker's plugins get."""

    def __init__(self) -> None:
        """Begin without a broker; `attach` adds the core."""
        self._core: Core

    def attach(self, core: Core) -> None:
        """Add and remove sinks of this core from now on."""
        self._core = core

    def add(self, sink: MessageSink) -> None:
        """Offer messages to one more sink from now on.

        Raises:
            PenstockError: a sink has its name, or a topic filter is not valid.
        """
        core = self._core
        if any(other.name == sink.name for other in core.sinks):
            raise PenstockError(f"sink {sink.name}: there is one; allowed: a name of its own")
        for topic_filter in sink.topic_filters:
            try:
                validate_topic_filter(topic_filter)
            except PeerError as error:
                raise PenstockError(f"sink {sink.name}: {error}") from error
        core.set_sinks((*core.sinks, sink))

    def remove(self, sink: MessageSink) -> None:
        """Offer a sink nothing more; it may still be asked to `accept` what it has reserved."""
        core = self._core
        core.set_sinks([other for other in core.sinks if other is not sink])
