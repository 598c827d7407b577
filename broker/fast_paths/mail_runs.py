"""Runs of messages that waited for a kept session, as its owner gives them.

They leave at once as they came, but for Packet Identifiers, and stand in the inflight window as one
run, whose rows the owner has. What is not for this way is given one by one (`LocalClients`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.broker.errors import PeerError
from penstock.broker.fast_paths.message_run import MessageRun, Segment, tell_sent
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.expiry import EXPIRY
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.short_packets import end_of_like
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.sessions.session import DIRECT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.extensions import MailRun
    from penstock.broker.fast_paths.run_window import RunWindow
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session


def take_mail_run(
    core: Core, session: Session, mail: MailRun, may_get: Callable[[str], bool], now: float
) -> int | None:
    """Send a kept session the first messages of a run; see `LocalClients.deliver_run`.

    Args:
        core: the broker, in which no plugin has to be asked about single messages.
        session: the session, whose window takes runs.
        mail: the messages.
        may_get: says whether it surely may receive the messages of a topic.
        now: monotonic seconds.
    """
    sender, inflight, qos = session.sender, cast("RunWindow", session.inflight), mail.qos
    if (
        not session.is_direct
        or sender is None
        or session.journal is None
        or (session.version == MQTT_5) != (mail.version == MQTT_5)
    ):
        return None
    n_left = mail.n_messages
    if qos:
        n_left = min(n_left, sender.send_quota - inflight.n_messages)
        if n_left <= 0 or inflight.n_bytes >= sender.send_quota_bytes:
            session.journal.is_short = True
            return 0
    segments, n_bytes = _segments(core, session, mail, may_get, n_left)
    if not segments:
        return None
    data = mail.packets[:n_bytes]
    run = MessageRun(data, segments, qos, mail.version, mail.publisher, mail.arrived_at, now)
    n_messages, outgoing = run.n_messages, session.outgoing
    if run.largest_bytes > outgoing.copy_maximum or n_bytes + outgoing.out_bytes >= DIRECT_BYTES:
        return None
    if qos:
        run.row = mail.row
        first = inflight.start_run(run)
        if not first:
            return None
        outgoing.out.append(run.renumbered(first))
        session.ledger.matched += n_messages
        if core.timing:
            tell_sent(core, session.link, first, run, now)
    else:
        outgoing.out.append(data)
        session.n_direct += n_messages
    outgoing.out_bytes += n_bytes
    if not outgoing.is_touched:
        core.turn.write_soon(outgoing)
    core.counters.packets_sent += n_messages
    core.counters.publish_sent += n_messages
    return n_messages


def _segments(
    core: Core, session: Session, mail: MailRun, may_get: Callable[[str], bool], n_left: int
) -> tuple[list[Segment], int]:
    """Return what the first packets of a run are that may leave as they came, and their bytes."""
    data, version, position = mail.packets, mail.version, 0
    segments: list[Segment] = []
    known = b"\0" if version == MQTT_5 else b""
    topics: dict[bytes, tuple[str, int]] = {}
    try:
        while n_left and position < len(data):
            start, length = read_remaining_length(data, position)
            stop = start + length
            topic_end, _, properties_at, payload_at = read_publish_head(
                data, data[position], start, stop, version
            )
            topic_bytes, properties = data[start + 2 : topic_end], data[properties_at:payload_at]
            if properties != known:
                if EXPIRY in read_publish_properties(properties, 0)[0]:
                    break
                known = properties
            if topic_bytes not in topics:
                topic = topic_bytes.decode()
                n_most = _most_bytes(core, session, mail, topic) if may_get(topic) else -1
                topics[topic_bytes] = topic, n_most
            topic, most_payload_bytes = topics[topic_bytes]
            n_bytes = stop - position
            if stop - payload_at > most_payload_bytes or n_bytes > JOIN_BELOW_BYTES:
                break
            last = min(len(data), position + n_left * n_bytes) - n_bytes
            next_at = end_of_like(data, position, stop, topic_end, properties, last)
            n_messages = (next_at - position) // n_bytes
            names = topic, topic_bytes
            segments.append((n_messages, position, n_bytes, topic_end, stop - payload_at, names))
            n_left -= n_messages
            position = next_at
    except (PeerError, UnicodeDecodeError):
        pass  # it is met again, and told
    return segments, position


def _most_bytes(core: Core, session: Session, mail: MailRun, topic: str) -> int:
    """Return up to how many payload bytes a topic's messages leave as they came; -1 for none."""
    assert core.kept is not None  # noqa: S101 (the session is one of it)
    found = core.kept.tree.subscriptions_of(session, topic)
    is_own = mail.publisher == session.client_id
    if not found or any(
        one.qos < mail.qos or one.subscription_id or one.sizes or (is_own and one.no_local)
        for one in found
    ):
        return -1
    threshold_s = core.threshold_s(topic)
    return JOIN_BELOW_BYTES if threshold_s is None else threshold_s
