"""The plugin `trace` makes spans of messages on their way, for OpenTelemetry.

Theory of operation. A publisher sends the W3C Trace Context of its span as the User Property
``traceparent`` of MQTT 5, which passes unchanged. Where its flag says that the trace is sampled, a
span ``receive`` is made when the message is routed, as its child; and a span ``deliver``, the child
of that, when a PUBLISH with the same property is handed to a subscriber's connection. Another one
is ``store``, when a queue has stored the message. Both last from the arrival, so that they show how
long the message was held, or waited. The library sends spans from
a thread of its own; what it cannot send is dropped, and no message waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.events import Callbacks, MessageRouted, PacketSent
from penstock.broker.extensions import Plugin, PluginContext
from penstock.broker.message import Message
from penstock.plugins.trace.config import TraceConfig

_PROPERTY: Final = "traceparent"
_VALUE_BYTES: Final = 55

_IN_PACKET: Final = b"\x26\x00\x0b" + _PROPERTY.encode() + bytes((0, _VALUE_BYTES))
"""The User Property as a PUBLISH has it, up to its value (MQTT 5.0, 3.3.2.3.7)."""

_PUBLISH: Final = 3


@runtime_checkable
class TellsStored(Protocol):
    """A plugin that stores messages, such as `queue`."""

    def tell_stored(self, callback: Callable[[str, Sequence[Message]], None]) -> None:
        """Tell of the messages that are stored from now on: where, and which."""


class TracePlugin(Plugin):
    """`trace` in a policy file."""

    Config = TraceConfig
    config: TraceConfig

    def __init__(self, config: TraceConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        try:
            from penstock.plugins.trace.spans import Spans  # noqa: PLC0415 (of an extra)
        except ImportError as error:
            allowed = "with the extra otel: pip install 'penstock-mqtt[otel]'"
            problem = ConfigProblem("plugins.trace", str(error), allowed)
            raise ConfigError(context.policy_file, [problem]) from error
        self._spans = Spans(config.otlp, config.sample)
        self.callbacks = Callbacks(message_routed=(self._routed,), packet_sent=(self._sent,))

    async def start(self) -> None:
        """Begin to send spans."""
        self._spans.start()
        for plugin in self.context.plugins.values():
            if isinstance(plugin, TellsStored):
                plugin.tell_stored(self._stored)

    async def close(self) -> None:
        """Send what is left."""
        await asyncio.to_thread(self._spans.close)

    def _routed(self, event: MessageRouted) -> None:
        message = event.message
        if value := _traceparent(message):
            client_id = event.session.client_id
            self._spans.receive(value, client_id, message.topic, message.payload_bytes)

    def _sent(self, event: PacketSent) -> None:
        if event.first_byte >> 4 != _PUBLISH or event.session is None:
            return
        header = bytes(event.chunks[0])
        at = header.find(_IN_PACKET)
        if at >= 0:
            at += len(_IN_PACKET)
            value = header[at : at + _VALUE_BYTES].decode("ascii", "replace")
            n_bytes = sum(map(len, event.chunks[1:]))
            self._spans.leave("deliver", value, n_bytes, client_id=event.session.client_id)

    def _stored(self, queue: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if value := _traceparent(message):
                self._spans.leave("store", value, message.payload_bytes, to=queue)


def _traceparent(message: Message) -> str:
    """Return the context that a message carries, or ""."""
    pairs = message.properties.get("user_property", ())
    return next((value for name, value in pairs if name == _PROPERTY), "")
