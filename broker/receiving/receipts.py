"""What a client's publishes are owed: acknowledgements, in order, and not too many at a time.

A QoS 1 or 2 message that is not accepted at once, since a queue, the disk or access control has
to answer first, gets a receipt. Receipts are settled in any order and acknowledged in the order
in which the messages came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.size_limit import explained

if TYPE_CHECKING:
    from penstock.broker.receiving.connection import Connection


class PublishReceipt:
    """What a publisher is owed for one QoS 1 or 2 message.

    It is settled once as many answers have come as it waits for.

    Attributes:
        connection: on which the acknowledgement goes out.
        packet_id: of the PUBLISH.
        qos: 1 or 2.
        reason_code: why the message was refused; below 0x80 where it was not.
        reason: the same in words for the publisher, or "".
        is_settled: every answer has come.
        is_stored: the packet identifier is stored in the commit of the message.
    """

    __slots__ = (
        "_n_waiting",
        "connection",
        "is_settled",
        "is_stored",
        "packet_id",
        "qos",
        "reason",
        "reason_code",
    )

    def __init__(self, connection: Connection, packet_id: int, qos: int, n_answers: int) -> None:
        self.connection = connection
        self.packet_id = packet_id
        self.qos = qos
        self.reason_code = 0
        self.reason = ""
        self.is_settled = False
        self.is_stored = False
        self._n_waiting = n_answers

    def wait_for(self, n_answers: int) -> None:
        """Wait for more answers, while one at least is missing."""
        self._n_waiting += n_answers

    def settle(self, reason_code: int) -> None:
        """Take one answer; the last one sends the acknowledgement."""
        if reason_code >= 0x80:
            self.reason_code = reason_code
        self._n_waiting -= 1
        if self._n_waiting == 0:
            self.is_settled = True
            _acknowledge_in_order(self)


def book_receipt(
    connection: Connection, packet_id: int, qos: int, n_answers: int
) -> PublishReceipt:
    """Book a QoS 1 or 2 PUBLISH as owed, in the order of arrival [MQTT-4.6.0-2].

    Args:
        connection: it came on.
        packet_id: of the PUBLISH.
        qos: 1 or 2.
        n_answers: how many times `PublishReceipt.settle` will be called, at least 1.

    Raises:
        ProtocolError: an MQTT 5 client has more unacknowledged than Receive Maximum.
    """
    check_receive_maximum(connection)
    receipt = PublishReceipt(connection, packet_id, qos, n_answers)
    connection.owe(receipt)
    if qos == 2:
        connection.session.incoming[packet_id] = receipt
    if not connection.wants_reading:
        connection.core.turn.touch(connection)
    return receipt


def check_receive_maximum(connection: Connection) -> None:
    """Check that an MQTT 5 client may send one more QoS 1 or 2 message [MQTT-3.3.4-9].

    An MQTT 3.1.1 client knows no Receive Maximum: it is slowed down by not reading.

    Raises:
        ProtocolError: receive maximum exceeded.
    """
    if connection.version != MQTT_5:
        return
    incoming = connection.session.incoming
    if len(incoming) + len(connection.receipts) < connection.receive_maximum:
        return  # whatever the receipts are for
    # What is left of earlier connections is not of this one's quota (4.9).
    n_messages = sum(1 for packet_id in incoming if packet_id not in connection.inherited)
    n_messages += sum(1 for receipt in connection.receipts if receipt.qos == 1)
    if n_messages >= connection.receive_maximum:
        raise ProtocolError(
            f"{n_messages + 1} QoS 1 and 2 messages unacknowledged; "
            f"allowed: {connection.receive_maximum}",
            ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        )


def _acknowledge_in_order(receipt: PublishReceipt) -> None:
    """Send what is settled, in the order in which the messages came [MQTT-4.6.0-2]."""
    connection = receipt.connection
    session = connection.session
    if receipt.qos == 2:
        if receipt.reason_code >= 0x80:
            session.incoming.pop(receipt.packet_id, None)
        else:
            session.incoming[receipt.packet_id] = None
            if session.journal is not None and not receipt.is_stored:
                session.journal.incoming_changed(receipt.packet_id)
    if not connection.is_open:
        return None
    receipts = connection.receipts
    n_before = len(receipts)
    while receipts and receipts[0].is_settled:
        first = receipts.popleft()
        if first.reason_code >= 0x80 and connection.version != MQTT_5:
            # No PUBACK can say it: the client keeps the message and comes again.
            return connection.close(ReasonCode(first.reason_code), None)
        if not first.reason_code:
            connection.send_receipt(0x40 if first.qos == 1 else 0x50, first.packet_id)
        else:
            connection.send_packet(acknowledgement(first))
    if n_before >= connection.receive_maximum > len(receipts):
        connection.core.turn.touch(connection)
    return None


def acknowledgement(receipt: PublishReceipt) -> PubAck | PubRec:
    """Return the packet that a settled receipt stands for."""
    kind = PubAck if receipt.qos == 1 else PubRec
    code = receipt.reason_code
    told = receipt.connection.core.options.told(code)
    return kind(receipt.packet_id, told, explained(receipt.reason if told == code else ""))
