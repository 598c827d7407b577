"""Support for the bridges of other brokers, beyond MQTT: mosquitto's conventions.

A bridge is a client that forwards messages to a broker of its own. It must not be sent its own
messages, or they would loop endlessly; and it has to know which messages were published as
retained, to retain them too. MQTT 5.0 has subscription options for both. Earlier versions have
none: there, a bridge declares itself in CONNECT, and all its subscriptions are handled as if they
had these options.

A bridge also announces itself: "1" in ``$SYS/broker/connection/CLIENT_ID/state``, retained, with a
will that says "0". This is all that a client may publish below ``$SYS``. A client in the broker's
own process is its bridge to another broker, and may say the same of any connection; a relay
publishes nothing there.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, RELAY_CLIENT_PREFIX
from penstock.broker.mqtt.packets import SubscriptionRequest
from penstock.broker.mqtt.topics import parse_share

CONNECTIONS: Final = "$SYS/broker/connection/"
"""Below this topic bridges announce themselves."""

_STATE: Final = CONNECTIONS + "{}/state"


def of_bridge(request: SubscriptionRequest) -> SubscriptionRequest:
    """Return what a bridge means by the subscription that it asks for.

    Other members of a shared subscription may be no bridges: No Local is not for it
    [MQTT-3.8.3-4].
    """
    is_shared = bool(parse_share(request.topic_filter).share_name)
    return request._replace(no_local=not is_shared, retain_as_published=True)


def may_publish_sys(client_id: str, topic: str) -> bool:
    """Say whether a client may publish to a topic below ``$SYS``: its own state as a bridge."""
    if client_id.startswith(RELAY_CLIENT_PREFIX):
        return False
    if client_id.startswith(LOCAL_CLIENT_PREFIX):
        return topic.startswith(CONNECTIONS)
    return topic == _STATE.format(client_id)
