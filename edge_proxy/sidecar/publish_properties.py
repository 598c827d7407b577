"""The properties of PUBLISH packets from the broker.

Most packets of a stream have the properties of the packet before. These are known by their bytes.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.edge_proxy.sidecar.config import ProxyLimits

_KNOWN_BYTES: Final = 128
"""Property Length of one byte and properties that are compared with those of the packet before."""

_NONE: Final[dict[str, Any]] = {}


class PublishProperties:
    """Reads the properties of one connection's packets.

    Attributes:
        newest: the bytes of short properties that were read last and found good, with their length.
    """

    __slots__ = ("_limits", "newest")

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self.newest = b""

    def read(self, data: bytes, start: int, stop: int) -> dict[str, Any]:
        """Return the properties of a PUBLISH.

        Args:
            data: received bytes.
            start: where the Property Length stands.
            stop: where the payload begins.

        Raises:
            PeerError: they are malformed, not allowed, or too many: quota exceeded.
        """
        if stop - start <= 1:
            return _NONE
        limits = self._limits
        if stop - start > limits.properties_bytes:
            n_bytes, _ = read_variable_byte_integer(data, start)
            if n_bytes > limits.properties_bytes:
                raise ProtocolError("properties of PUBLISH", ReasonCode.QUOTA_EXCEEDED)
        properties, _ = read_publish_properties(data, start, limits.properties)
        if "topic_alias" in properties:
            raise ProtocolError(
                "PUBLISH with a Topic Alias; allowed: none, as Topic Alias Maximum is 0 "
                "[MQTT-3.1.2-27]",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if stop - start <= _KNOWN_BYTES:
            self.newest = data[start:stop]
        return properties
