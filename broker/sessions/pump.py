"""From a session's outbox to its client, as far as there is room.

Theory of operation. `pump` takes from the outbox what may leave while there is room. A large
message ends the pump: it leaves alone, and the gate is asked again when the transport has taken it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sending.sender import PUMP_BYTES
from penstock.broker.sessions.large_ahead import large_sent
from penstock.broker.sessions.probes import send_probe
from penstock.broker.sessions.redelivery import may_take_over, take_over
from penstock.broker.sessions.retained_delivery import SLICE_MESSAGES, send_due

if TYPE_CHECKING:
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sending.write_queue import Outgoing
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

PUMP_MESSAGES: Final = 32
"""The same in messages. Each takes some 5 us, so that the driver can see every fraction of a
millisecond whether others have waited long enough; a write for so many costs little of that."""


def pump(client: Client, unsent_bytes: int, now: float) -> None:
    """Move from the outbox into `out` what may be sent now.

    Args:
        client: connected or not.
        unsent_bytes: what the transport has taken and not sent.
        now: monotonic seconds.
    """
    outgoing = client.outgoing
    sender = client.sender
    if outgoing.is_unreadable:  # a DISCONNECT would be read as a part of the payload
        client.close(ReasonCode.UNSPECIFIED_ERROR, now)
        outgoing.drop_out()
    if not outgoing.is_pump_wanted:
        return
    outgoing.is_pump_wanted = False
    outgoing.wants_more = False
    if not client.is_open or outgoing.is_paused or (sender.held and not sender.is_disk_failing()):
        return
    session = client.session
    if session.client is not client:  # its peer is gone
        return
    is_refilled = False
    n_left = PUMP_MESSAGES
    inflight = session.inflight
    session.link.unsent_bytes = unsent_bytes
    if session.probe is not None:
        send_probe(session, sender, now)
    while n_left and outgoing.out_bytes + sender.held_bytes < PUMP_BYTES:
        n_left -= 1
        if session.resend:
            # The quota is this connection's [MQTT-3.3.4-9]; the last one's may have been more.
            if len(inflight) - len(session.resend) >= sender.send_quota:
                break
            repeat = session.resend.popleft()
            sender.send_again(repeat, now)
            if repeat.after is not None:
                _large_sent(session, repeat, now)
            continue
        delivery = session.outbox.take(now, has_quota=sender.has_quota())
        if delivery is None:
            if session.retained_due and not outgoing.wants_more and send_due(session, now):
                outgoing.wants_more = True  # after others had their turn
            elif is_refilled or not session.shares or not take_over(session, now):
                break
            else:
                is_refilled = True
            continue
        is_large = delivery.after is not None
        sender.send_delivery(delivery, now)
        if session.retained_due:
            send_due(session, now, 1)
        if is_large:
            _large_sent(session, delivery, now)
            outgoing.wants_more = True
            break
    else:  # it may have been all: found in the next pump only, what comes till then would wait
        outgoing.wants_more = bool(
            session.outbox.n_messages
            or session.resend
            or session.retained_due
            or (session.shares and may_take_over(session))
        )
    outgoing.wants_more |= is_refilled  # there may be more of it
    _after_pump(client, session, now)


def _large_sent(session: Session, delivery: Delivery, now: float) -> None:
    """Tell of a large message that was handed to the connection; at QoS 2 not of its PUBREL."""
    large_sent(session, delivery, now)
    inflight = session.inflight
    if inflight.holds(delivery) and not inflight.is_released(delivery.packet_id):
        session.outbox.large_sent(delivery, now)


def _after_pump(client: Client, session: Session, now: float) -> None:
    if client.core.room.waiting:
        client.core.room.made(session, now)
    outgoing = client.outgoing
    if outgoing.wants_more:
        outgoing.is_pump_wanted = True
        # New messages are sent between retained ones, and do not wait for all of them.
        if session.retained_due and session.outbox.n_messages <= SLICE_MESSAGES:
            client.throttle.let_go()
    elif session.outbox.n_messages <= client.sender.send_quota:
        if not (session.outbox.n_messages or session.resend or session.retained_due):
            session.is_direct = session.outbox.order is None
            client.throttle.is_slow = False
        client.throttle.let_go()
    _set_look_timer(session, outgoing, now)


def _set_look_timer(session: Session, outgoing: Outgoing, now: float) -> None:
    """Set a timer for the next decision of the gate.

    Where that time has passed already, the inflight window was full: the acknowledgement that
    makes room causes the next pump, and a timer would fire at once, again and again.
    """
    at = session.outbox.look_again_at
    if at is not None and at <= now:
        at = None
    timer = session.look_timer
    if timer is not None and timer.at == at and timer.action is not None:
        return
    if timer is not None:
        timer.cancel()
    session.look_timer = None
    if at is not None:
        session.look_timer = session.core.timers.at(at, lambda _now: outgoing.want_pump())
