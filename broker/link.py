"""What is known of the path to one subscriber."""

from __future__ import annotations


class TcpLook:
    """What the kernel said of one TCP connection when it was last asked (Linux: struct tcp_info).

    Samplers write it at each look, whether or not anything was acknowledged since the one before.

    Attributes:
        looked_at: monotonic seconds of that look.
        rtt: smoothed RTT, seconds; None before the first sample of the connection.
        rttvar: its mean deviation, seconds; None before the first sample.
        delivery_rate: bytes per second at which data was lately acknowledged; None before any was.
        is_app_limited: whether `delivery_rate` was measured while there was too little to send:
            the path may then carry more than that.
        unsent_bytes: bytes that the kernel has taken and not sent once; `Link.unsent_bytes` are
            those that it has not taken.
        unacked_segments: segments that were sent and are not acknowledged.
        segments: data segments that were sent since the connection began, retransmissions included.
        retransmissions: those of them that were sent again.
        retransmit_ratio: retransmissions among the data segments of the recent past, 0 to 1, the
            older ones counting less; None where none was sent lately.
        congestion_control: name of what decides how fast the kernel sends, such as ``cubic``; ""
            where it does not say.
    """

    __slots__ = (
        "congestion_control",
        "delivery_rate",
        "is_app_limited",
        "looked_at",
        "retransmissions",
        "retransmit_ratio",
        "rtt",
        "rttvar",
        "segments",
        "unacked_segments",
        "unsent_bytes",
    )

    def __init__(self, looked_at: float) -> None:
        self.looked_at = looked_at
        self.rtt: float | None = None
        self.rttvar: float | None = None
        self.delivery_rate: int | None = None
        self.is_app_limited = False
        self.unsent_bytes = 0
        self.unacked_segments = 0
        self.segments = 0
        self.retransmissions = 0
        self.retransmit_ratio: float | None = None
        self.congestion_control = ""


class Link:
    """The path to one subscriber, as samplers see it and gates judge it.

    Samplers write it, gates and reports read it. The broker makes one for each session and
    keeps it while the session lasts.

    Attributes:
        client_id: Client Identifier of the subscriber.
        username: user name of the subscriber, or None.
        listener: name of the listener of its newest connection; "" before there was one.
        rtt_latest: newest RTT estimate, seconds; None before the first and where the last one
            is too old to say anything (paper 002).
        rtt_bytes: payload bytes of the packet that `rtt_latest` was timed on; 0 for a bare
            acknowledgement, as the kernel times.
        rtt_updated_at: monotonic seconds of the newest estimate, or None.
        rtt_source: name of the source of the newest estimate, such as ``tcp_info``.
        srtt: smoothed RTT, seconds, or None (RFC 6298).
        rttvar: RTT variance, seconds, or None (RFC 6298).
        rtt_min: least RTT in the sampler's window, seconds, or None.
        threshold_l: RTT of the uncongested path, seconds, as a moving average of recent RTTs,
            or None before the first (paper 002).
        asked_threshold_l: the same as the subscriber's CONNECT gave it, or None where it did not.
        unsent_bytes: bytes that the connection has taken and the kernel has not.
        outstanding_since: monotonic seconds at which the oldest unacknowledged timed packet
            was sent, or None.
        outstanding_bytes: payload bytes of that packet; 0 for a bare acknowledgement.
        quiet_until: monotonic seconds before which a sparing sampler (`LinkSampler`) ignores
            what leaves.
        tcp: what the kernel said of the present connection; None while it was not asked yet, or
            has no answer.
    """

    __slots__ = (
        "asked_threshold_l",
        "client_id",
        "listener",
        "outstanding_bytes",
        "outstanding_since",
        "quiet_until",
        "rtt_bytes",
        "rtt_latest",
        "rtt_min",
        "rtt_source",
        "rtt_updated_at",
        "rttvar",
        "srtt",
        "tcp",
        "threshold_l",
        "unsent_bytes",
        "username",
    )

    def __init__(self, client_id: str, username: str | None = None) -> None:
        self.client_id = client_id
        self.username = username
        self.listener = ""
        self.asked_threshold_l: float | None = None
        self.rtt_latest: float | None = None
        self.rtt_bytes = 0
        self.rtt_updated_at: float | None = None
        self.rtt_source = ""
        self.srtt: float | None = None
        self.rttvar: float | None = None
        self.rtt_min: float | None = None
        self.threshold_l: float | None = None
        self.unsent_bytes = 0
        self.outstanding_since: float | None = None
        self.outstanding_bytes = 0
        self.quiet_until = 0.0
        self.tcp: TcpLook | None = None
