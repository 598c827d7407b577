"""The properties of an outgoing PUBLISH, encoded once for all who get the message.

What differs between two readers, or two moments, stands behind what does not: the rest of the
Message Expiry Interval, the Subscription Identifiers and the Topic Alias.
"""

from __future__ import annotations

from typing import Final

from broker.message import Message
from broker.mqtt.data_types import write_variable_byte_integer
from broker.mqtt.enums import PacketType
from broker.mqtt.properties import encode_properties

_EXPIRY: Final = "message_expiry_interval"

_ALMOST_A_SECOND: Final = 0.999
"""What is left of an interval is rounded up, but not for the rounding error of a clock."""


def outgoing_properties(
    message: Message, subscription_ids: tuple[int, ...], now: float, topic_alias: int = 0
) -> bytes:
    """Return the properties of an outgoing PUBLISH (MQTT 5.0, 3.3.2.3) after their length.

    Args:
        message: to be sent.
        subscription_ids: Subscription Identifiers, in order.
        now: monotonic seconds.
        topic_alias: 0 for none.
    """
    encoded = message.encoded_properties
    if message.properties and not encoded:
        lasting = {name: each for name, each in message.properties.items() if name != _EXPIRY}
        encoded = message.encoded_properties = encode_properties(lasting, PacketType.PUBLISH)
    if message.expires_at is not None:  # [MQTT-3.3.2-6]
        left = max(0, int(message.expires_at - now + _ALMOST_A_SECOND))
        encoded += b"\x02" + left.to_bytes(4)
    if subscription_ids:
        encoded += b"\x0b" + b"\x0b".join(map(write_variable_byte_integer, subscription_ids))
    if topic_alias:
        encoded += b"\x23" + topic_alias.to_bytes(2)
    return write_variable_byte_integer(len(encoded)) + encoded
