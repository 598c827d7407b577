"""The known facts about the path to one subscriber."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class TcpLook:
    """The kernel's last report of one TCP connection (Linux: struct tcp_info).

    Samplers write it at each look, even if nothing was acknowledged since the one before.

    Attributes:
        looked_at: monotonic seconds of that look.
        rtt: smoothed RTT, seconds; None before the first sample of the connection.
        rttvar: mean deviation of the RTT, seconds; None before the first sample.
        delivery_rate: bytes per second at which data was lately acknowledged; None before the first
            acknowledgement.
        is_app_limited: `delivery_rate` was measured while there was too little to send: the path
            may carry more.
        unsent_bytes: bytes that the kernel has taken and never sent; `Link.unsent_bytes` are those
            that it has not taken.
        unacked_segments: segments that were sent and are not acknowledged.
        retransmissions: segments that were retransmitted since the connection began.
        retransmit_ratio: retransmissions among the data segments between the last two looks with
            news of any, 0 to 1; None before.
        congestion_control: name of the connection's congestion control, such as ``cubic``; "" where
            it is unknown.
    """

    looked_at: float
    rtt: float | None = None
    rttvar: float | None = None
    delivery_rate: int | None = None
    is_app_limited: bool = False
    unsent_bytes: int = 0
    unacked_segments: int = 0
    retransmissions: int = 0
    retransmit_ratio: float | None = None
    congestion_control: str = ""


@dataclass(eq=False, slots=True)
class Link:
    """The path to one subscriber, as samplers measure it and gates judge it.

    Samplers write it; gates and reports read it. The broker makes one for each session and keeps it
    as long as the session.

    Attributes:
        client_id: Client Identifier of the subscriber.
        username: user name of the subscriber, or None.
        listener: name of the listener of its newest connection; "" before its first.
        rtt_latest: newest RTT estimate, seconds; None before the first and where the last one is
            too old to use (paper 002).
        rtt_bytes: payload bytes of the packet that `rtt_latest` was timed on; 0 for a bare
            acknowledgement, as the kernel times.
        rtt_updated_at: monotonic seconds of the newest estimate, or None.
        rtt_source: name of the source of the newest estimate, such as ``tcp_info``.
        rtt_min: least RTT in the sampler's window, seconds, or None.
        threshold_l: RTT of the uncongested path, seconds, as a moving average of recent RTTs, or
            None before the first (paper 002).
        asked_threshold_l: the threshold that the subscriber's CONNECT gave, or None where it gave
            none.
        unsent_bytes: bytes that the connection has taken and the kernel has not.
        gets_small: whether its subscriptions can bring small messages; False where all that it made
            are for large ones.
        had_large: a large message has come for it. What is known of the path decides about large
            messages alone, so until then a sampler may look at it less often.
        outstanding_since: monotonic seconds at which the oldest unacknowledged timed packet was
            sent, or None.
        outstanding_bytes: payload bytes of that packet; 0 for a bare acknowledgement.
        quiet_until: monotonic seconds before which a sparing sampler (`LinkSampler`) ignores sent
            packets.
        tcp: the kernel's last report of the present connection; None before the first look, or
            where the kernel has no answer.
    """

    client_id: str
    username: str | None = None
    listener: str = ""
    asked_threshold_l: float | None = None
    rtt_latest: float | None = None
    rtt_bytes: int = 0
    rtt_updated_at: float | None = None
    rtt_source: str = ""
    rtt_min: float | None = None
    threshold_l: float | None = None
    unsent_bytes: int = 0
    gets_small: bool = True
    had_large: bool = False
    outstanding_since: float | None = None
    outstanding_bytes: int = 0
    quiet_until: float = 0.0
    tcp: TcpLook | None = None
