"""What a client's publishes are owed: acknowledgements, in order, and not too many at a time.

A QoS 1 or 2 message that is not accepted at once, since a queue, the disk or access control has
to answer first, gets a receipt. Receipts are settled in any order and acknowledged in the order
in which the messages came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.client import PublishReceipt

if TYPE_CHECKING:
    from penstock.broker.sessions.client import Client


def book_receipt(
    client: Client, packet_id: int, qos: int, n_answers: int, *, is_repeat: bool = False
) -> PublishReceipt:
    """Book a QoS 1 or 2 PUBLISH as owed, in the order of arrival [MQTT-4.6.0-2].

    Args:
        client: it came from.
        packet_id: of the PUBLISH.
        qos: 1 or 2.
        n_answers: how many times `PublishReceipt.settle` will be called, at least 1.
        is_repeat: the PUBLISH has DUP.

    Raises:
        ProtocolError: an MQTT 5 client has more unacknowledged than Receive Maximum.
    """
    check_receive_maximum(client)
    receipt = PublishReceipt(client, packet_id, qos, n_answers)
    if is_repeat:
        before = client.session.unanswered.get(packet_id)
        receipt.was_routed = before is not None and before.was_routed
        # Later connections of a session that is not durable repeat nothing of before its begin.
        receipt.is_repeat = client.session.journal is not None or client.has_begun_session
    client.owe(receipt)
    if qos == 2:
        client.session.incoming[packet_id] = receipt
    if not client.may_receive:
        client.core.turn.touch(client.outgoing)
    return receipt


def check_receive_maximum(client: Client) -> None:
    """Check that an MQTT 5 client may send one more QoS 1 or 2 message [MQTT-3.3.4-9].

    An MQTT 3.1.1 client knows no Receive Maximum: it is slowed down by not reading. So is a client
    in the broker's process, which passes on what another broker sends: mosquitto 2.0 may send more.

    Raises:
        ProtocolError: receive maximum exceeded.
    """
    incoming = client.session.incoming
    if len(incoming) + len(client.receipts) < client.receive_maximum:
        return  # whatever the receipts are for
    if client.keeps_no_receive_maximum:
        return
    # What is left of earlier connections is not of this one's quota (4.9).
    n_messages = sum(1 for packet_id in incoming if packet_id not in client.inherited)
    n_messages += sum(1 for receipt in client.receipts if receipt.qos == 1)
    if n_messages >= client.receive_maximum:
        raise ProtocolError(
            f"{n_messages + 1} QoS 1 and 2 messages unacknowledged; "
            f"allowed: {client.receive_maximum}",
            ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        )
