"""Will Messages, which tell others that a client was lost (MQTT 5.0, 3.1.2.5)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from penstock.broker.message import OF_MQTT_3, Message, properties_bytes
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.bridges import may_publish_sys

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

NO_THRESHOLD: Final = 2**63

WILL_BYTES: Final = 184
"""Memory that CPython takes for a will beside its payload, topic and properties."""

DELAY_BYTES: Final = 424
"""Memory that CPython takes for the timer of a will that may be delayed."""


def will_bytes(will: Will | None) -> int:
    """Return about what a will takes of the memory; 0 for none."""
    if will is None:
        return 0
    n_bytes = WILL_BYTES + sys.getsizeof(will.topic) + len(will.payload)
    if will.properties:
        n_bytes += DELAY_BYTES + properties_bytes(will.properties)
    return n_bytes


def will_message(
    will: Will, client_id: str, now: float, threshold_s: int = NO_THRESHOLD
) -> Message:
    """Return the message that a will stands for if it is published now.

    Its Message Expiry Interval runs from `now` (3.1.3.2.4). Above `threshold_s` payload bytes it is
    large.
    """
    properties = {k: v for k, v in will.properties.items() if k != "will_delay_interval"}
    return Message(
        will.topic,
        will.payload,
        qos=will.qos,
        retain=will.retain,
        arrived_at=now,
        is_large=len(will.payload) > threshold_s,
        expires_at=expiry_time(properties, now),
        properties=properties,
        publisher=client_id,
    )


def will_delay(session: Session) -> float:
    """Return the seconds from the loss of the connection to the will (3.1.3.2.2)."""
    return float(session.will.properties.get("will_delay_interval", 0)) if session.will else 0.0


def send_will(core: Core, session: Session, now: float) -> None:
    """Publish a session's will, if it has one, once [MQTT-3.1.2-8], [MQTT-3.1.2-10].

    It is the client's PUBLISH: what that may not do, the will may not do either.
    """
    will = session.will
    core.sessions.set_will(session, None)
    if core.journal is not None:
        core.journal.will_changed(session)
    if session.will_timer is not None:
        session.will_timer.cancel()
        session.will_timer = None
    if will is None:
        return
    if will.topic.startswith("$SYS") and not may_publish_sys(session.client_id, will.topic):
        core.router.refuse(session.client_id, will.topic, ReasonCode.NOT_AUTHORIZED)
        return
    plan = core.tree.plan(will.topic, will.topic.encode())
    message = will_message(will, session.client_id, now, plan.threshold_s)
    message.arrived_at = core.arrived_at(now, plan.sinks)
    if session.version != MQTT_5:
        message.properties = OF_MQTT_3
    payload = core.guard.call(core.payload_store, core.keep, will.payload, otherwise=None)
    if payload is None:
        core.router.refuse(session.client_id, will.topic, ReasonCode.QUOTA_EXCEEDED)
        return
    message.payload = payload
    journal = core.journal
    if (
        journal is not None
        and message.qos
        and not journal.is_failing
        and journal.lacks_room(message)
        and journal.must_refuse(session, plan, message)
    ):
        message.qos = 0  # it cannot be refused: nothing of it is stored, and who is there gets it
    core.router.publish(message, now, session)
