"""A chunk that is one small packet, as nearly all are where many clients each do little.

Theory of operation. For such a chunk the broker has to look up the topic and to copy some bytes.
The search for further packets, which pays where a chunk has many, would cost several times as much.
So two kinds of packet are taken here without that search: a QoS 0 or 1 PUBLISH whose subscribers
are sent nearly the same bytes, and the PUBACK of a message that was sent by itself. The functions
of `copied_runs` and `acknowledged_runs` then do with them what they do with a run.

Each function here either takes the whole packet, or leaves it to `Connection` and returns False
before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.fast_paths.acknowledged_runs import pass_run_on, quota_left, takes_run
from penstock.broker.fast_paths.copied_runs import pass_on
from penstock.broker.fast_paths.shared_runs import Group
from penstock.broker.fast_paths.sink_runs import sinks_of
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.short_packets import PACKET_BYTES
from penstock.broker.receiving.acknowledging import made_room, sample
from penstock.broker.sessions.client import PublishReceipt
from penstock.broker.sessions.session import DIRECT_BYTES

if TYPE_CHECKING:
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.fast_paths.fast_core import FastCore, FastSession
    from penstock.broker.link import Link

LEAST_BYTES: Final = PACKET_BYTES
"""Bytes of the smallest packet that is taken here, a PUBACK."""

_SHORT_FORM_BYTES: Final = 129
"""The Remaining Length of a packet of up to so many bytes has one byte; that of a larger one has
two."""


def _start_of_only(data: bytes, size: int) -> int:
    """Return where the variable header begins, if a chunk is one packet; 0 if it is anything else.

    It has `LEAST_BYTES` at least, and `JOIN_BELOW_BYTES` at most.
    """
    length = data[1]
    if size <= _SHORT_FORM_BYTES:
        return 2 if length == size - 2 else 0
    if length <= 0x7F or data[2] > 0x7F or size == _SHORT_FORM_BYTES + 1:
        return 0  # it is longer or shorter, or says its length in a form too long
    return 3 if length & 0x7F | data[2] << 7 == size - 3 else 0


def _take_qos_0(client: FastClient, data: bytes, now: float) -> bool:
    """Take a QoS 0 PUBLISH without properties.

    It reads the packet as `read_publish_head` does, itself: a call takes 0.2 us more, of the 1.4 us
    for all that the core does for such a packet (`many_to_one` of the benchmarks).
    """
    size = len(data)
    start = 2 if data[1] == size - 2 else _start_of_only(data, size)  # most save the call
    if not start:
        return False
    topic_end = payload_at = start + 2 + (data[start] << 8 | data[start + 1])
    if client.version == MQTT_5:
        payload_at += 1
        if data[topic_end:payload_at] != b"\0":  # it has properties
            return False
    topic_bytes = data[start + 2 : topic_end]
    plan = client.fast_plans.get(topic_bytes) or client.core.fast_plan(topic_bytes, client)
    if not 0 <= size - payload_at <= plan.threshold_s:
        return False
    pass_on(client, plan.sessions, data, 1, size, now)
    client.core.counters.bytes_received += size
    return True


def _take_qos_1(client: FastClient, data: bytes, now: float) -> bool:
    """Take a QoS 1 PUBLISH without properties."""
    size = len(data)
    start = 2 if data[1] == size - 2 else _start_of_only(data, size)
    if not start:
        return False
    topic_end = start + 2 + (data[start] << 8 | data[start + 1])
    payload_at = topic_end + 2
    packet_id = data[topic_end:payload_at]
    if client.version == MQTT_5:
        payload_at += 1
        if data[payload_at - 1 : payload_at] != b"\0":
            return False
    core = client.core
    topic_bytes = data[start + 2 : topic_end]
    plan = client.fast_plans.get(topic_bytes) or core.fast_plan(topic_bytes, client)
    if (
        not 0 <= size - payload_at <= plan.threshold_s
        or not plan.least_qos
        or packet_id == b"\0\0"
        or client.awaiting
    ):
        return False
    sessions = plan.sessions
    acknowledgement = b"\x40\x02" + packet_id
    payload_bytes = size - payload_at
    journal = sessions[0].inflight.journal if len(sessions) == 1 else None
    if journal is not None:
        if (
            sessions[0].is_direct  # which no lane is, whose journal knows no lone messages
            and client.n_owed + len(client.session.incoming) < client.receive_maximum
            and journal.may_go_alone()
        ):
            receipt = LoneReceipt(client, acknowledgement)
            if _pass_alone(
                client, sessions[0], plan.topic, data, topic_end, payload_bytes, now, receipt
            ):
                client.owe(receipt)
                journal.lone_sent(receipt)
                if client.n_owed >= client.receive_maximum and not client.may_receive:
                    core.turn.touch(client.outgoing)
                core.counters.bytes_received += size
                return True
    elif (
        len(sessions) == 1
        and not client.receipts
        and _pass_alone(client, sessions[0], plan.topic, data, topic_end, payload_bytes, now)
    ):
        outgoing = client.outgoing
        if client.sender.held or outgoing.is_paused:
            client.sender.send_run(acknowledgement, 1, is_state=False)
        else:  # the same without two calls, 0.2 us less
            outgoing.out.append(acknowledgement)
            outgoing.out_bytes += PACKET_BYTES
            core.counters.packets_sent += 1
            if not outgoing.is_touched:
                core.turn.write_soon(outgoing)
        core.counters.bytes_received += size
        return True
    if (
        (client.version != MQTT_5 or quota_left(client, sessions, 1))
        and takes_run(client, sessions, 1, 1, size)
        and (not isinstance(sessions, Group) or sessions.prepare(1, 1, size, size))
        and ((sinks := sinks_of(sessions)) is None or sinks.reserve(1, size))
    ):
        segment = (1, 0, size, topic_end, payload_bytes, plan.topic)
        pass_run_on(client, sessions, data, [segment], 1, acknowledgement, now, sinks)
        core.counters.bytes_received += size
        return True
    return False


class LoneReceipt(PublishReceipt):
    """The PUBACK that a publisher is owed for a message that went by itself to a durable session.

    It is sent when the subscriber has acknowledged the message, or it is stored.
    """

    __slots__ = ("_packet",)

    def __init__(self, client: FastClient, packet: bytes) -> None:
        """Owe an acknowledgement, for which one answer is missing.

        Args:
            client: it goes to.
            packet: the acknowledgement.
        """
        super().__init__(client, packet[2] << 8 | packet[3], 1, 1)
        self.was_routed = True
        self._packet = packet

    def settle(self, reason_code: int) -> None:  # noqa: ARG002 (it is routed: no refusal comes)
        """Take the answer, of which there is one."""
        self.is_settled = True
        client = self.client
        receipts = client.receipts
        if len(receipts) != 1 or receipts[0] is not self or not client.is_open:
            self._acknowledge_in_order()
            return
        receipts.popleft()  # the same for most of them, 0.3 us less
        client.n_owed -= 1
        self.send()
        if client.n_owed + 1 >= client.receive_maximum:
            client.core.turn.touch(client.outgoing)

    def send(self) -> None:
        """Send the acknowledgement."""
        client = self.client
        outgoing = client.outgoing
        if client.sender.held or outgoing.is_paused:
            client.sender.send_run(self._packet, 1, is_state=False)
            return
        outgoing.out.append(self._packet)
        outgoing.out_bytes += PACKET_BYTES
        client.core.counters.packets_sent += 1
        if not outgoing.is_touched:
            client.core.turn.write_soon(outgoing)


def _pass_alone(
    client: FastClient,
    session: FastSession,
    topic: tuple[str, bytes],
    data: bytes,
    packet_id_at: int,
    payload_bytes: int,
    now: float,
    receipt: PublishReceipt | None = None,
) -> bool:
    """Send a QoS 1 message to its only subscriber, as `pass_run_on` sends a run of one to many.

    A run would take 2 us more. The arguments are those of a `LoneMessage`.

    Returns:
        False, and nothing has changed, where it may have to wait.
    """
    core = client.core
    sender = session.sender
    inflight = session.inflight
    size = len(data)
    if not (  # `takes_run` and `Session.sends_at_once`
        session.is_direct
        and sender is not None
        and not core.room.over_half
        and size <= (outgoing := session.outgoing).copy_maximum
        and inflight.n_messages < sender.send_quota
        and size + inflight.n_bytes < sender.send_quota_bytes
        and (out_bytes := size + outgoing.out_bytes) < DIRECT_BYTES
    ):
        return False
    publisher = client.session.known_as
    packet_id = inflight.start_lone(
        data, payload_bytes, topic, publisher, core.arrived_at(now), receipt
    )
    if not packet_id:
        return False
    outgoing.out.append(
        data[:packet_id_at] + packet_id.to_bytes(2, "big") + data[packet_id_at + 2 :]
    )
    outgoing.out_bytes = out_bytes
    if not outgoing.is_touched:
        core.turn.write_soon(outgoing)
    session.ledger.matched += 1
    counters = core.counters
    counters.packets_received += 1
    counters.publish_received += 1
    counters.packets_sent += 1
    counters.publish_sent += 1
    link = session.link
    if core.timing and not (core.spares and now < link.quiet_until):
        _tell_sent(core, link, packet_id, payload_bytes, now)
    return True


def _tell_sent(core: FastCore, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
    core.guard.tell_each(core.timing, lambda each: each.sent(link, packet_id, payload_bytes, now))


def _take_puback(client: FastClient, data: bytes, now: float) -> bool:
    """Take the PUBACK of the oldest message, where that went alone and nothing more is said."""
    if len(data) != PACKET_BYTES or data[1] != PACKET_BYTES - 2:
        return False
    session = client.session
    packet_id = data[2] << 8 | data[3]
    if not session.inflight.finish_alone(packet_id):
        return False
    core = client.core
    counters = core.counters
    counters.bytes_received += PACKET_BYTES
    counters.packets_received += 1
    session.ledger.delivered += 1
    if core.timing and not (core.spares and session.link.outstanding_since is None):
        sample(session, core, packet_id, 1, now)
    if not session.is_direct or session.shares:  # nothing waits for a direct one
        made_room(client, session)
    return True


TAKE_SINGLE: Final[dict[int, Callable[[Any, bytes, float], bool]]] = {
    0x30: _take_qos_0,
    0x32: _take_qos_1,
    0x40: _take_puback,
}
"""First byte of a packet to what takes a chunk that is one: a PUBLISH without DUP and RETAIN, or a
PUBACK.

Each takes (client, chunk, now). The client is open, with nothing received before that is not
handled; the chunk has at least `LEAST_BYTES` and at most `JOIN_BELOW_BYTES`. It returns False, and
nothing has changed, where the chunk is something else or not for this way.
"""
