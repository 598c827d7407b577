"""Combines the sources of RTTs to one estimate for each subscriber.

Theory of operation. The kernel (`tcp_info`) times every segment, whatever the QoS, and costs one
system call a period. But its RTT ends at the next TCP endpoint: behind a relay, a proxy or a load
balancer it stays low however bad the rest of the path is. An acknowledgement (`puback`) comes from
the client itself. But it exists only for QoS 1 and 2, and may stop once large messages are
withheld. The acknowledgement of a `probe` comes in each period, from clients that have subscribed
to be probed. So no source may overrule the others permanently:

1. Within one source, a newer estimate replaces the older one. It counts for `max_age_seconds`; the
kernel's is as old as the last look that found something newly acknowledged.

2. Of the estimates that count, the largest is `rtt_latest`. So a relay's low RTT never hides a slow
client, and losses that delay the acknowledgements of MQTT are seen although the kernel leaves
retransmitted segments out of its RTT. There is one exception. The kernel's RTT is smoothed, so on a
quiet connection it stays high for seconds after the path has become good. An acknowledgement of
MQTT carries one of TCP, which was no slower: a lower one that came since the kernel's last look
shows the path as it is. Where none counts, `rtt_latest` is None: gates deliver, and what they
deliver is the probe.

3. The other RTTs of the link come from the same source, so that the least RTT of a relay is never
compared with the RTT of the whole path. `rtt_bytes` is 0 for the kernel and the payload size of the
timed packet for an acknowledgement.

4. What is overdue counts at once: `outstanding_since` is the oldest of the unanswered timed packet,
the unanswered probe and the stall of the connection (see `puback`, `probe` and `stall`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import LinkSampler, Plugin, PluginContext, Reload
from penstock.broker.link import Link, TcpLook
from penstock.broker.network.tcp_info import (
    TcpInfo,
    is_tcp_info_supported,
    read_congestion_control,
    read_tcp_info,
)
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.estimators import SourceEstimates
from penstock.plugins.probing.rtt_sources import ProbeTimer, PubackTimer, StallDetector

KERNEL = "tcp_info"
"""The name of the source whose RTTs come smoothed."""

MAX_TIMED_BYTES = 10_000
"""A packet with a longer payload is not timed; this is the size of paper 002's query. The time of a
larger packet depends on the path's rate more than on its congestion."""

SPACING_SECONDS = 0.1
"""Time from a sample to the next packet that is timed. Ten samples a second describe any congestion
that is worth withholding for."""

SMALL_ONLY_SPACING_SECONDS = 0.5
"""The same for a subscriber that has had no large message, so that nothing was to be decided. A
sample takes 5 to 14 us, and all that the broker does for a lone message 6. Readings that come every
second are still timed one by one, so that a path is known to be dead when the first picture comes.
"""

QUIET_LOOKS = 5
"""The kernel tells nothing new of a connection on which nothing is on its way. After so many looks
in a row that found so, one in as many periods is made, for a subscriber that has had no large
message. A look takes 17 us: those at 10,000 idle subscribers took a sixth of a core."""


@dataclass(eq=False, slots=True)
class SubscriberPath:
    """The records of one subscriber, beside its link.

    Attributes:
        totals: data segments and retransmissions of the connection at its last look, or None.
        quiet_looks: looks in a row at which nothing was on its way.
        periods_left: so many periods pass without a look.
    """

    timer: PubackTimer = field(default_factory=PubackTimer)
    sources: tuple[SourceEstimates, ...] = ()
    probe: ProbeTimer = field(default_factory=ProbeTimer)
    stall: StallDetector = field(default_factory=StallDetector)
    totals: tuple[int, int] | None = None
    quiet_looks: int = 0
    periods_left: int = 0

    def source(self, name: str) -> SourceEstimates:
        """Return the estimates of a source; create them with its first sample."""
        for source in self.sources:
            if source.name == name:
                return source
        source = SourceEstimates(name)
        self.sources += (source,)
        return source

    def newest(self, now: float, max_age_seconds: float) -> SourceEstimates | None:
        """Return the source with the largest estimate that counts, or None."""
        largest = None
        for source in self.sources:
            if (
                source.updated_at is not None
                and now - source.updated_at <= max_age_seconds
                and (largest is None or source.latest > largest.latest)
            ):
                largest = source
        if largest is None or largest.name != KERNEL or len(self.sources) == 1:
            return largest
        since = largest.updated_at or 0.0
        newer = (source for source in self.sources if (source.updated_at or 0.0) > since)
        return max(newer, key=lambda source: source.latest, default=largest)


class RttSampler(LinkSampler):
    """The `LinkSampler` of this plugin.

    Attributes:
        period: seconds between two looks at a subscriber (T_Q of paper 002).
        probe_topic: the Topic Name of probes; None where they are no source.
        probe_payload: the payload of each probe, random, so that no link can compress it.
    """

    is_sparing = True

    def __init__(self, config: ProbingConfig, logger: logging.Logger) -> None:
        self._logger = logger
        self.change(config, config.sources)
        if "probe" in config.sources:
            self.probe_topic = config.probe_topic
            self.probe_payload = os.urandom(config.probe_bytes)
        self._paths: dict[Link, SubscriberPath] = {}

    def change(self, config: ProbingConfig, sources: Sequence[str]) -> None:
        """Use other times and sources from now on; the topic and the bytes of probes stay."""
        self.period = config.probe_period
        self._reads_kernel = "tcp_info" in sources
        self._max_age_seconds = config.max_age_seconds
        # No payload is shorter than -1 byte: without the source no packet is timed.
        self._max_timed_bytes = MAX_TIMED_BYTES if "puback" in sources else -1

    def read_tcp_info(self, fileno: int) -> TcpInfo | None:
        """Ask the kernel; a simulation answers itself."""
        return read_tcp_info(fileno)

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Read the connection's TCP figures, and let estimates age."""
        path = self._path(link)
        if path.periods_left and not link.had_large:
            path.periods_left -= 1
        elif self._reads_kernel and fileno >= 0:
            info = self.read_tcp_info(fileno)
            if info is not None:
                is_waiting = info.unacked > 0 or info.notsent_bytes > 0
                is_new = path.stall.look(info.bytes_acked, is_waiting=is_waiting, now=now)
                path.quiet_looks = 0 if is_new or is_waiting else path.quiet_looks + 1
                if path.quiet_looks >= QUIET_LOOKS:
                    path.periods_left = QUIET_LOOKS - 1
                self._write_look(link, path, info, fileno, now)
                if is_new and info.rtt > 0:
                    path.source(KERNEL).add(info.rtt, 0, now)
                self._write_outstanding(link, path)
        return self._write_estimate(link, path, now)

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Time a QoS 1 or 2 PUBLISH, unless it is too early for one."""
        self.sent_run(link, packet_id, 1, payload_bytes, now)

    def sent_run(
        self,
        link: Link,
        first_packet_id: int,
        n_packets: int,  # noqa: ARG002 (the contract's: the others are too early)
        payload_bytes: int,
        now: float,
    ) -> None:
        """Time the first of them, if the timer wants it."""
        if payload_bytes > self._max_timed_bytes or now < link.quiet_until:
            return
        path = self._path(link)
        path.periods_left = 0
        timer = path.timer
        link.quiet_until = now + self._max_age_seconds  # then it is given up for the next
        was_idle = timer.sent_at is None
        given_up = timer.sent(first_packet_id, payload_bytes, now)
        if was_idle or given_up is not None:
            self._write_outstanding(link, path)
        if given_up is not None:
            path.source("puback").add(*given_up, now)
            self._write_estimate(link, path, now)

    def probe_sent(self, link: Link, packet_id: int, now: float) -> None:
        """Time a probe."""
        path = self._path(link)
        path.probe.packet_id, path.probe.sent_at = packet_id, now
        self._write_outstanding(link, path)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Take the sample of a timed packet's PUBACK or PUBREC."""
        return self.acknowledged_run(link, packet_id, 1, now)

    def acknowledged_run(
        self, link: Link, first_packet_id: int, n_packets: int, now: float
    ) -> bool:
        """Take the samples of timed packets among these."""
        path = self._paths.get(link)
        if path is None:
            return False
        probe = path.probe
        was_probed = probe.packet_id != 0
        if was_probed:
            rtt = probe.acknowledged(first_packet_id, n_packets, now)
            if rtt is not None:
                path.source("probe").add(rtt, len(self.probe_payload), now)
        sample = path.timer.acknowledged(first_packet_id, n_packets, now)
        if sample is not None:
            spacing = SPACING_SECONDS if link.had_large else SMALL_ONLY_SPACING_SECONDS
            link.quiet_until = now + spacing
            path.source("puback").add(*sample, now)
        elif was_probed == (probe.packet_id != 0):  # none of them was timed
            return False
        self._write_outstanding(link, path)
        return self._write_estimate(link, path, now)

    def connected(self, link: Link, now: float) -> None:
        """Forget what was outstanding; what is known of the path ages on."""
        path = self._paths.get(link)
        if path is not None:
            path = self._paths[link] = SubscriberPath(sources=path.sources)
            link.tcp = None
            link.quiet_until = 0.0
            self._write_outstanding(link, path)
            self._write_estimate(link, path, now)

    def forget(self, link: Link) -> None:
        """Drop the records of this subscriber."""
        self._paths.pop(link, None)

    def _path(self, link: Link) -> SubscriberPath:
        path = self._paths.get(link)
        if path is None:
            path = self._paths[link] = SubscriberPath()
        return path

    def _write_outstanding(self, link: Link, path: SubscriberPath) -> None:
        """Write since when what is unanswered is in flight."""
        timer, probe = path.timer, path.probe
        since, n_bytes = path.stall.stalled_since, 0
        if probe.packet_id and (since is None or probe.sent_at <= since):
            since, n_bytes = probe.sent_at, len(self.probe_payload)
        if timer.sent_at is not None and (since is None or timer.sent_at <= since):
            since, n_bytes = timer.sent_at, timer.payload_bytes
        link.outstanding_since = since
        link.outstanding_bytes = n_bytes

    def _write_look(
        self, link: Link, path: SubscriberPath, info: TcpInfo, fileno: int, now: float
    ) -> None:
        """Write the kernel's figures of the connection, changed or not."""
        tcp = link.tcp
        if tcp is None:
            tcp = link.tcp = TcpLook(now)
            tcp.congestion_control = read_congestion_control(fileno)
        tcp.looked_at = now
        if info.rtt > 0:
            tcp.rtt = info.rtt
            tcp.rttvar = info.rttvar
        tcp.delivery_rate = info.delivery_rate or None
        tcp.is_app_limited = info.is_app_limited
        tcp.unsent_bytes = info.notsent_bytes
        tcp.unacked_segments = info.unacked
        tcp.retransmissions = info.total_retrans
        before, path.totals = path.totals, (info.data_segs_out, info.total_retrans)
        if before is not None and before[0] != info.data_segs_out:
            n_segments, n_again = (info.data_segs_out - before[0], info.total_retrans - before[1])
            tcp.retransmit_ratio = min(1.0, n_again % 2**32 / (n_segments % 2**32))

    def _write_estimate(self, link: Link, path: SubscriberPath, now: float) -> bool:
        """Write the estimate that counts at present; return whether it has changed."""
        source = path.newest(now, self._max_age_seconds)
        if source is None:
            is_new = link.rtt_latest is not None
            link.rtt_latest = None
            return is_new
        is_new = link.rtt_updated_at != source.updated_at or link.rtt_source != source.name
        if is_new:
            link.rtt_latest = source.latest
            link.rtt_bytes = source.payload_bytes
            link.rtt_updated_at = source.updated_at
            link.rtt_source = source.name
            link.rtt_min = source.minimum.value
            link.threshold_l = source.average.value
        return is_new


class ProbingPlugin(Plugin):
    """`probing` in a policy file."""

    Config = ProbingConfig
    sampler: RttSampler

    def __init__(self, config: ProbingConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.sampler = RttSampler(config, context.logger)
        self._sources = config.sources

    async def start(self) -> None:
        """Check that this kernel has what the policy file asks for.

        Raises:
            ConfigError: ``tcp_info`` is the only source and the kernel does not have it.
        """
        sources = self.config.sources
        if "tcp_info" not in sources or is_tcp_info_supported():
            return
        if sources == ("tcp_info",):
            problem = ConfigProblem(
                "plugins.probing.sources", "tcp_info alone", "puback: this needs Linux 4.9 or newer"
            )
            raise ConfigError(self.context.policy_file, [problem])
        self.context.logger.warning(
            "probing: source tcp_info left out: it needs Linux 4.9 or newer; RTTs come from %s",
            ", ".join(source for source in sources if source != "tcp_info"),
        )

    async def reload(self, config: ProbingConfig) -> Reload:
        """Take times and sources; a source `probe` that comes or goes needs a restart."""
        takes, sources = ["probe_period", "max_age_seconds"], self._sources
        if ("probe" in config.sources) == (self.sampler.probe_topic is not None):
            takes.append("sources")
            sources = config.sources

        def apply() -> None:
            self._sources = sources
            self.sampler.change(config, sources)

        return Reload(takes=takes, apply=apply)
