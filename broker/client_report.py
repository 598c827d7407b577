"""The report about one client: its link, its withholding and its ledger.

The fields, with the same names, are those of the JSON documents below `$SYS` and of the HTTP API of
the plugin `console`. Times are in seconds; an age or a wait counts from the report. None stands for
what is not known or does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

MOST_FILTER_CHARACTERS: Final = 2_000
"""A report shows topic filters up to this length in all; some clients have thousands."""


class TcpFigures(NamedTuple):
    """The kernel's report of the connection; see `penstock.broker.link.TcpLook`.

    Attributes:
        age_seconds: seconds since the kernel was asked.
        rtt: smoothed RTT.
        rttvar: mean deviation of the RTT.
        delivery_rate_bytes_per_second: the rate at which data was lately acknowledged.
        is_app_limited: the rate was measured while there was too little to send.
        unsent_bytes: bytes that the kernel has taken and never sent.
        unacked_segments: sent and not acknowledged.
        retransmissions: the segments that were retransmitted since the connection began.
        retransmit_ratio: their share of the segments of the recent past, 0 to 1.
        congestion_control: the congestion control of the connection, such as ``cubic``; None where
            it is unknown.
    """

    age_seconds: float
    rtt: float | None
    rttvar: float | None
    delivery_rate_bytes_per_second: int | None
    is_app_limited: bool
    unsent_bytes: int
    unacked_segments: int
    retransmissions: int
    retransmit_ratio: float | None
    congestion_control: str | None


class LinkFigures(NamedTuple):
    """The present state of the path to the client; see `penstock.broker.link.Link`.

    Attributes:
        rtt_latest: newest RTT estimate; None where no recent one exists, and while the client is
            away.
        rtt_source: name of its source, such as ``tcp_info``; "" before the first.
        rtt_bytes: payload bytes of the packet that was timed; 0 for a bare acknowledgement.
        rtt_age_seconds: seconds since the newest estimate was made, recent or not.
        rtt_min: least RTT of the recent past.
        threshold_l: RTT above which the gate regards the path as congested; None where the gate has
            no such threshold.
        unsent_bytes: bytes that the broker had for the connection and the kernel had not taken, at
            the last write or the last time that writing resumed.
        outstanding_age_seconds: seconds since the oldest timed and unanswered packet was sent on
            this connection.
        outstanding_bytes: payload bytes of that packet.
        tcp: the kernel's report of the connection; None while the client is away.
        is_connected: whether the client has a network connection.
    """

    rtt_latest: float | None
    rtt_source: str
    rtt_bytes: int
    rtt_age_seconds: float | None
    rtt_min: float | None
    threshold_l: float | None
    unsent_bytes: int
    outstanding_age_seconds: float | None
    outstanding_bytes: int
    tcp: TcpFigures | None
    is_connected: bool


class DecisionFigures(NamedTuple):
    """The gate's last decision about a large message, and what became of that message.

    Attributes:
        outcome: ``sent``; ``held``, which still waits; or ``gone``, which was held and left unsent:
            it expired, was dropped or went to another member of its shared subscription.
        reason: the comparison that decided, in words.
        cause: one word for it, of `penstock.broker.outbox.large_messages.CAUSES`.
        topic: Topic Name of the message.
        payload_bytes: the payload bytes of the message.
        withheld_seconds: time for which it has been held; for a client that is away, time until the
            decision, as waiting time stops meanwhile.
        age_seconds: seconds since the decision.
    """

    outcome: Literal["sent", "held", "gone"]
    reason: str
    cause: str
    topic: str
    payload_bytes: int
    withheld_seconds: float
    age_seconds: float


class SmallWaitFigures(NamedTuple):
    """The waits of small messages behind large ones on the client's one connection.

    Attributes:
        messages: the messages that waited; waits below a tenth of a second do not count.
        mean_seconds: the mean of their waits.
        since_seconds: the time that is told of: the last five to ten minutes, less for a new
            client.
    """

    messages: int
    mean_seconds: float
    since_seconds: float


class PassageFigures(NamedTuple):
    """The passage of the client's large messages of QoS 1 and 2, as far as the gate notes it.

    Attributes:
        last_seconds: time that the newest took, from when it was sent, or the one before it was
            acknowledged, until its acknowledgement; None before the first.
        bytes_per_second: the rate at which it passed, without the round trip.
        bad_bytes_per_second: the rate of the newest that passed a bad path; None before the first.
        pause_seconds: seconds for which the next one waits because the last one was slow; 0 for
            none.
        on_way_bytes: payload bytes that are sent and not acknowledged.
        on_way_seconds: seconds since the oldest of these was sent; 0 for none.
    """

    last_seconds: float | None
    bytes_per_second: float | None
    bad_bytes_per_second: float | None
    pause_seconds: float
    on_way_bytes: int
    on_way_seconds: float


class WithholdingFigures(NamedTuple):
    """The gate's effect on the client's large messages.

    Attributes:
        withheld: messages held now, those behind a held one on its topic included.
        withheld_total: messages that were held.
        released_total: held messages that were sent afterwards.
        look_again_in_seconds: the gate is asked again after this time at the latest.
        last_decision: None before the first large message.
        recent: the last decisions by which a message began to be held (``held``) or was sent after
            a hold (``sent``), oldest first.
        small_waits: None where no small message has waited lately; where the client has lanes, as
            these have no connection in common; and in a proxy.
        passage: the passage of these messages; None where the gate notes nothing.
    """

    withheld: int
    withheld_total: int
    released_total: int
    look_again_in_seconds: float | None
    last_decision: DecisionFigures | None
    recent: list[DecisionFigures]
    small_waits: SmallWaitFigures | None
    passage: PassageFigures | None


class LedgerFigures(NamedTuple):
    """The places of the client's messages; see `penstock.broker.outbox.message_counts.Ledger`.

    ``matched = delivered + inflight + withheld + queued + expired + moved + sum(dropped)``.

    Attributes:
        matched: messages for this client.
        delivered: sent at QoS 0, acknowledged at QoS 1, completed at QoS 2.
        inflight: sent and not acknowledged.
        withheld: held by the gate.
        queued: waiting for other reasons.
        expired: their Message Expiry Interval had passed.
        moved: messages that went to another member of their shared subscription, or to the client's
            other lane.
        dropped: messages that were dropped, by reason.
        queued_bytes: payload bytes that wait, withheld or queued.
        waits_for: why no message leaves at the moment, as text.
    """

    matched: int
    delivered: int
    inflight: int
    withheld: int
    queued: int
    expired: int
    moved: int
    dropped: dict[str, int]
    queued_bytes: int
    waits_for: str


class SubscriptionFigures(NamedTuple):
    """The client's subscriptions, shared ones included.

    Attributes:
        total: subscriptions.
        small: subscriptions that take small messages alone.
        large: subscriptions that take large messages alone.
        filters: topic filters of the first, as many as `MOST_FILTER_CHARACTERS` have room for.
    """

    total: int
    small: int
    large: int
    filters: list[str]


def first_filters(topic_filters: Iterable[str]) -> list[str]:
    """Return the first topic filters, as many as a report shows."""
    n_left, found = MOST_FILTER_CHARACTERS, []
    for topic_filter in topic_filters:
        n_left -= len(topic_filter)
        if n_left < 0:
            break
        found.append(topic_filter)
    return found


class ClientReport(NamedTuple):
    """One client, at one moment.

    Attributes:
        client_id: Client Identifier.
        is_connected: whether it has a network connection.
        gone_seconds: seconds since its session ended, or its connection to a proxy; None while it
            has one.
        username: the username of its newest connection, or None.
        listener: the listener of its newest connection; "" before its first.
        why_away: for a client of a plugin such as an uplink: why it is not connected, or why it is
            by one connection in place of two; else "".
        subscriptions: their number by size class; None where that is not known, as in a
            proxy and of a client that has gone.
        link: the path to the client.
        withholding: the gate's effect on its large messages.
        ledger: all of its messages.
    """

    client_id: str
    is_connected: bool
    gone_seconds: float | None
    username: str | None
    listener: str
    why_away: str
    subscriptions: SubscriptionFigures | None
    link: LinkFigures
    withholding: WithholdingFigures
    ledger: LedgerFigures


def as_json(figures: Any) -> Any:
    """Return a report, or a part of one, as JSON values: objects with the fields' names as keys."""
    if isinstance(figures, tuple) and hasattr(figures, "_asdict"):
        return {name: as_json(value) for name, value in figures._asdict().items()}
    if isinstance(figures, (list, tuple)):
        return [as_json(value) for value in figures]
    return figures
