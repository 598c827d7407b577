"""From the bytes of a packet other than PUBLISH to the function that handles it.

A table leads from packet class to ``handle_<packet>``. Those of CONNECT, AUTH, SUBSCRIBE and
UNSUBSCRIBE have modules of their own, as acknowledgements have; PINGREQ and DISCONNECT are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Subscribe,
    Unsubscribe,
)
from penstock.broker.mqtt.reader import USED_FIRST_BYTES_3_1, read_packet
from penstock.broker.receiving.acknowledging import TAKE_ACKNOWLEDGEMENT
from penstock.broker.receiving.authenticating import handle_auth
from penstock.broker.receiving.connecting import expiry_seconds, handle_connect
from penstock.broker.receiving.subscribing import check_number, handle_subscribe, handle_unsubscribe

if TYPE_CHECKING:
    from penstock.broker.sessions.client import Client


_CONNECT: Final = int(PacketType.CONNECT)
_WITH_FILTERS: Final = (int(PacketType.SUBSCRIBE), int(PacketType.UNSUBSCRIBE))


def receive(client: Client, first_byte: int, body: bytes, now: float) -> None:
    """Read one packet and handle it.

    Raises:
        PeerError: it is malformed or not allowed; a second CONNECT is not, whatever is in it
            [MQTT-3.1.0-2].
    """
    packet_type = first_byte >> 4
    if client.is_open and packet_type == _CONNECT:
        raise ProtocolError("a second CONNECT")
    if packet_type in _WITH_FILTERS:
        check_number(client, packet_type, body)
    most_properties = client.core.limits.properties
    packet: Any = read_packet(first_byte, body, client.version, most_properties)
    handler = _HANDLERS.get(type(packet))
    if handler is not None:
        handler(client, packet, now)
        return
    # What was read is of MQTT 3.1 where it has other flags.
    take = TAKE_ACKNOWLEDGEMENT.get(USED_FIRST_BYTES_3_1.get(first_byte, first_byte))
    if take is None:  # a packet that only servers send
        raise ProtocolError(f"{type(packet).__name__} from a client")
    take(client, packet.packet_id, now, packet.reason_code)


def handle_pingreq(client: Client, _packet: PingReq, _now: float) -> None:
    """Answer a PINGREQ [MQTT-3.12.4-1]."""
    client.sender.send_packet(PingResp())


def handle_disconnect(client: Client, packet: Disconnect, now: float) -> None:
    """Take a DISCONNECT (section 3.14): without a reason, the will is void [MQTT-3.14.4-3].

    Raises:
        ProtocolError: it sets a Session Expiry Interval that CONNECT had as 0 (3.14.2.2.2).
    """
    if not client.is_open:  # in the middle of its authentication
        client.end(now)
        return
    session = client.session
    interval = packet.properties.get("session_expiry_interval")
    if interval is not None:
        # With a limit of 0, what CONNECT asked for is not known any more; nothing outlives it.
        if interval and session.expiry_interval == 0 and client.core.session_expiry_limit != 0:
            raise ProtocolError("DISCONNECT: Session Expiry Interval; allowed: 0, as in CONNECT")
        session.expiry_interval = expiry_seconds(client.core, interval)
    client.end_reason = packet.reason_code
    if not packet.reason_code and session.will is not None:  # a normal disconnection
        client.core.sessions.set_will(session, None)
    client.end(now)


_HANDLERS: Final[dict[type, Callable[[Any, Any, float], None]]] = {
    Auth: handle_auth,
    Connect: handle_connect,
    Disconnect: handle_disconnect,
    PingReq: handle_pingreq,
    Subscribe: handle_subscribe,
    Unsubscribe: handle_unsubscribe,
}
