"""PUBACK, PUBREC, PUBREL and PUBCOMP from a client (MQTT 5.0, 3.4 to 3.7).

Most have neither reason code nor properties. `TAKE_ACKNOWLEDGEMENT` takes these by their packet
identifier, so that no packet is made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.message import ARRIVAL_SECONDS
from penstock.broker.mqtt.enums import ProtocolVersion
from penstock.broker.mqtt.packets import PubComp, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions import redelivery
from penstock.broker.sessions.deduplication_release import DeduplicationRelease
from penstock.broker.sessions.source_subscriptions import acknowledged_by_consumer

if TYPE_CHECKING:
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

PUBREC_BYTE: Final = 0x50
PUBREL_BYTE: Final = 0x62
PUBCOMP_BYTE: Final = 0x70


def acknowledged(
    client: Client, packet_id: int, qos: int, now: float, reason_code: int = 0
) -> None:
    """Finish a delivery: its PUBACK or PUBCOMP has come, or a PUBREC that refuses it.

    Raises:
        ProtocolError: packet identifier 0 [MQTT-2.2.1-3], or one for which something else is
            owed (`Inflight.finish`).
    """
    session = client.session
    core = client.core
    delivery = session.inflight.finish(packet_id, qos)
    if delivery is None:
        _not_expected(core, packet_id)
        return
    if reason_code < 0x80:
        session.ledger.delivered += 1
    else:
        session.ledger.drop("refused")
    if delivery.after is not None:
        if reason_code < 0x80:
            seconds = now - delivery.message.arrived_at
            core.outbox_rules.observe_latency(session.link, "large", "acknowledged", seconds)
        if session.large_ahead is not None:
            session.large_ahead.acknowledged(session, delivery, now)
        if qos == 1:
            session.outbox.large_acknowledged(now)
    if qos == 1 and core.timing:
        sample(session, core, packet_id, 1, now, delivery)
    if delivery.is_leased:
        acknowledged_by_consumer(delivery, reason_code)
    made_room(client, session)


def made_room(client: Client, session: Session) -> None:
    """See that what waits for the session leaves: fewer messages are inflight."""
    if (
        session.outbox.n_messages
        or session.resend
        or session.retained_due
        or (session.shares and redelivery.may_take_over(session))
    ):
        client.outgoing.want_pump()


def _not_expected(core: Core, packet_id: int) -> None:
    """Count an acknowledgement that stands for nothing.

    Raises:
        ProtocolError: packet identifier 0 [MQTT-2.2.1-3].
    """
    if not packet_id:
        raise ProtocolError("acknowledgement of packet identifier 0")
    core.counters.unexpected_acknowledgements += 1


def sample(
    session: Session,
    core: Core,
    packet_id: int,
    n_packets: int,
    now: float,
    delivery: Delivery | None = None,
) -> None:
    """Tell the samplers of acknowledgements, unless none waits for any.

    Packet Identifiers follow the first one. The delivery that is acknowledged is None where
    messages were sent as soon as they came.
    """
    link = session.link
    sent_at = link.outstanding_since
    if core.spares and sent_at is None:
        return
    for sampler in core.timing:
        try:
            if n_packets == 1:
                has_news = sampler.acknowledged(link, packet_id, now)
            else:
                has_news = sampler.acknowledged_run(link, packet_id, n_packets, now)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not the client's)
            core.guard.failed(sampler, error)
            continue
        if has_news:
            session.link_changed()
    if sent_at is not None and link.outstanding_since != sent_at:  # it was the timed packet
        if delivery is not None:
            if delivery.after is not None:
                return
            arrived_at = delivery.message.arrived_at  # known to the eighth of a second
            if sent_at - arrived_at > ARRIVAL_SECONDS:  # it has waited
                sent_at = arrived_at
        core.outbox_rules.observe_latency(link, "small", "acknowledged", now - sent_at)


def handle_puback(client: Client, packet_id: int, now: float, reason_code: int = 0) -> None:
    """Take a PUBACK (section 3.4)."""
    acknowledged(client, packet_id, 1, now, reason_code)


def handle_pubrec(client: Client, packet_id: int, now: float, reason_code: int = 0) -> None:
    """Take a PUBREC (section 3.5) and answer it, unless it refuses the message [MQTT-4.3.3-4].

    Raises:
        ProtocolError: packet identifier 0 [MQTT-2.2.1-3], or that of a QoS 1 message.
    """
    session = client.session
    core = client.core
    delivery = session.inflight.release(packet_id)
    if delivery is None:
        _not_expected(core, packet_id)
        if reason_code < 0x80:
            client.sender.send_packet(PubRel(packet_id, _not_found(client)))
        return
    if core.timing:
        sample(session, core, packet_id, 1, now, delivery)
    if delivery.after is not None:
        session.outbox.large_acknowledged(now)
        made_room(client, session)
    if reason_code >= 0x80:
        acknowledged(client, packet_id, 2, now, reason_code)
    else:
        client.sender.send_short(PUBREL_BYTE, packet_id)


def handle_pubrel(client: Client, packet_id: int, _now: float, _reason_code: int = 0) -> None:
    """Take a PUBREL (section 3.6) and answer it [MQTT-4.3.3-11].

    Raises:
        ProtocolError: packet identifier 0 [MQTT-2.2.1-3], or that of a message whose PUBREC is
            still to come.
    """
    session = client.session
    incoming = session.incoming
    if packet_id not in incoming:
        _not_expected(client.core, packet_id)
        _forget_unknown(client, packet_id)
        return
    if incoming[packet_id] is not None:
        _forget_known(client, packet_id)
        return
    del incoming[packet_id]
    if session.journal is not None:
        session.journal.incoming_changed(packet_id)
    client.sender.send_short(PUBCOMP_BYTE, packet_id)


def _forget_unknown(client: Client, packet_id: int) -> None:
    """Answer a PUBREL of a packet identifier that a sink alone may know.

    The broker was killed after the sink's commit, and before its own.
    """

    def answer() -> None:
        if client.is_open:
            client.sender.send_when_safe(PubComp(packet_id, _not_found(client)))

    client.forgetting(packet_id, client.core.sinks, answer).ask()


def _forget_known(client: Client, packet_id: int) -> None:
    """Answer a PUBREL once the sinks have forgotten its message.

    Raises:
        ProtocolError: its PUBREC is still to come. To the client the identifier would be free, and
            a new message under it a repeat to the broker.
    """
    session = client.session
    incoming = session.incoming
    known = incoming[packet_id]
    if isinstance(known, DeduplicationRelease):
        known.sender = client.sender  # it has connected again
        return
    if not isinstance(known, tuple):
        raise ProtocolError(f"PUBREL of packet id {packet_id}; allowed: none before its PUBREC")

    def release() -> None:
        if incoming.get(packet_id) is not forgetting:
            return
        del incoming[packet_id]
        if session.journal is not None:
            session.journal.incoming_changed(packet_id)
        if forgetting.sender.is_open:
            forgetting.sender.send_short(PUBCOMP_BYTE, packet_id)
        else:
            client.core.sessions.look(session.client_id)

    forgetting = client.forgetting(packet_id, known or client.core.sinks, release)
    incoming[packet_id] = forgetting
    forgetting.ask()


def handle_pubcomp(client: Client, packet_id: int, now: float, _reason_code: int = 0) -> None:
    """Take a PUBCOMP (section 3.7)."""
    acknowledged(client, packet_id, 2, now)


TAKE_ACKNOWLEDGEMENT: Final[dict[int, Callable[..., None]]] = {
    0x40: handle_puback,
    PUBREC_BYTE: handle_pubrec,
    PUBREL_BYTE: handle_pubrel,
    PUBCOMP_BYTE: handle_pubcomp,
}
"""First byte of a packet to what takes it: (client, packet identifier, now, reason code); one
of four bytes has no reason code."""


def _not_found(client: Client) -> int:
    """Return the reason code for an unknown packet identifier; MQTT 3.1.1 has none."""
    is_5 = client.version == ProtocolVersion.MQTT_5
    return ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_5 else ReasonCode.SUCCESS
