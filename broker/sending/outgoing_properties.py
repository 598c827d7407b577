"""The properties of an outgoing PUBLISH, encoded once for all who get the message.

What differs between two readers, or two moments, stands before what does not: the rest of the
Message Expiry Interval, the Subscription Identifiers and the Topic Alias.
"""

from __future__ import annotations

from functools import lru_cache

from penstock.broker.message import Message
from penstock.broker.mqtt.data_types import read_variable_byte_integer, write_variable_byte_integer
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.expiry import EXPIRY, interval_left
from penstock.broker.mqtt.properties import write_properties


def outgoing_properties(
    message: Message, subscription_ids: tuple[int, ...], now: float, topic_alias: int = 0
) -> bytes:
    """Return the properties of an outgoing PUBLISH (MQTT 5.0, 3.3.2.3) after their length."""
    lasting = message.encoded_properties
    if not lasting:
        properties = {name: each for name, each in message.properties.items() if name != EXPIRY}
        lasting = message.encoded_properties = write_properties(properties, PacketType.PUBLISH)
    own = b""
    if message.expires_at is not None:  # [MQTT-3.3.2-6]
        own = b"\x02" + interval_left(message.expires_at, now).to_bytes(4)
    if subscription_ids:
        own += _subscription_identifiers(subscription_ids)
    if topic_alias:
        own += b"\x23" + topic_alias.to_bytes(2)
    if not own:
        return lasting
    n_bytes, start = read_variable_byte_integer(lasting, 0)
    return write_variable_byte_integer(n_bytes + len(own)) + own + lasting[start:]


@lru_cache(maxsize=256)
def _subscription_identifiers(subscription_ids: tuple[int, ...]) -> bytes:
    """Return Subscription Identifiers encoded: a client may have thousands that match a topic."""
    return b"\x0b" + b"\x0b".join(map(write_variable_byte_integer, subscription_ids))
