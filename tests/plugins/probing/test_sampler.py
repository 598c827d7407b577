from __future__ import annotations

import itertools
import logging
import socket
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import LinkSampler, PluginContext
from penstock.broker.link import Link
from penstock.broker.network import tcp_info
from penstock.broker.network.tcp_info import TcpInfo
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.rtt_sources import PubackTimer
from penstock.plugins.probing.sampler import KERNEL, ProbingPlugin, RttSampler, SubscriberPath
from tests.helpers.loopback import Loopback

NO_SOCKET = -1


def make_plugin(**keys: Any) -> ProbingPlugin:
    """Return the plugin with these keys of a policy file."""
    context = PluginContext(logging.getLogger("penstock.probing"), "policy.yaml", lambda: 0.0)
    return ProbingPlugin(ProbingConfig(**keys), context)


def make_sampler(**keys: Any) -> RttSampler:
    """Return the plugin's sampler."""
    return make_plugin(**keys).sampler


def acknowledge(
    sampler: LinkSampler, link: Link, rtt: float, *, at: float, payload_bytes: int = 100
) -> bool:
    """Send a packet and let its PUBACK come `rtt` seconds later, at `at`."""
    sampler.sent(link, 7, payload_bytes, at - rtt)
    return sampler.acknowledged(link, 7, at)


def sample_until_outstanding(
    sampler: LinkSampler, link: Link, loopback: Loopback, *, begin: int
) -> int:
    """Look each second until nothing moves any more; return the second of the last look."""
    for now in itertools.count(begin):
        sampler.sample(link, loopback.fileno, now)
        if link.outstanding_since is not None and link.outstanding_since >= begin:
            return now
    raise AssertionError


def test_plugin_brings_a_sampler_with_the_period_of_the_file() -> None:
    """probe_period is how often the broker calls."""
    plugin = make_plugin(probe_period=2.5)
    assert plugin.gate is None
    assert plugin.sampler.period == 2.5


def test_kernel_rtt_reaches_the_link(loopback: Loopback) -> None:
    """A look at a real socket writes the kernel's estimate, timed on bare segments."""
    sampler, link = make_sampler(), Link("a")
    loopback.exchange()
    assert sampler.sample(link, loopback.fileno, 50.0)
    assert link.rtt_latest is not None
    assert 0 < link.rtt_latest < 1
    assert link.rtt_latest == link.rtt_min == link.threshold_l
    assert (link.rtt_source, link.rtt_bytes, link.rtt_updated_at) == ("tcp_info", 0, 50.0)
    assert link.outstanding_since is None


def test_look_without_news_is_no_new_estimate(loopback: Loopback) -> None:
    """Where nothing was acknowledged since, the kernel's estimate is the old one."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 50.0)
    assert not sampler.sample(link, loopback.fileno, 51.0)
    assert link.rtt_updated_at == 50.0
    loopback.exchange()
    assert sampler.sample(link, loopback.fileno, 52.0)
    assert link.rtt_updated_at == 52.0


def test_estimate_of_an_idle_connection_grows_too_old(loopback: Loopback) -> None:
    """After max_age_seconds without an acknowledgement nothing is known; gates are told once."""
    sampler, link = make_sampler(max_age_seconds=10.0), Link("a")
    seen = []
    for now in (50.0, 60.0, 60.5, 61.0):
        is_new = sampler.sample(link, loopback.fileno, now)
        seen.append((is_new, link.rtt_latest is not None))
    assert seen == [(True, True), (False, True), (True, False), (False, False)]
    assert link.rtt_min is not None


def test_reader_that_stalls_is_outstanding(loopback: Loopback) -> None:
    """Bytes that wait in the kernel from look to look are overdue since the first of them."""
    sampler, link = make_sampler(), Link("a")
    sent = loopback.fill()
    now = sample_until_outstanding(sampler, link, loopback, begin=50)
    assert (link.outstanding_since, link.outstanding_bytes) == (now - 1, 0)
    loopback.subscriber.recv(sent, socket.MSG_WAITALL)
    sampler.sample(link, loopback.fileno, now + 1)
    assert link.outstanding_since is None


def test_each_look_writes_what_the_kernel_says(loopback: Loopback) -> None:
    """Rate, unsent bytes and RTT are there, and anew where nothing was acknowledged since."""
    sampler, link = make_sampler(), Link("a")
    assert link.tcp is None
    loopback.exchange(50_000)
    sampler.sample(link, loopback.fileno, 50.0)
    assert link.tcp is not None
    assert link.tcp.rtt == link.rtt_latest
    assert link.tcp.rttvar is not None
    assert link.tcp.delivery_rate is not None
    assert link.tcp.delivery_rate > 0
    assert (link.tcp.unsent_bytes, link.tcp.unacked_segments) == (0, 0)
    assert link.tcp.retransmit_ratio is None
    loopback.fill()
    now = sample_until_outstanding(sampler, link, loopback, begin=51)
    assert link.tcp.looked_at == now
    info = loopback.info()
    while (link.tcp.unsent_bytes, link.tcp.retransmissions) != (
        info.notsent_bytes,
        info.total_retrans,
    ):  # as long as the kernel sends
        now += 1
        sampler.sample(link, loopback.fileno, now)
        info = loopback.info()
    assert link.tcp.unsent_bytes > 0
    assert link.tcp.retransmit_ratio is not None


def looks(sampler: LinkSampler, link: Link, loopback: Loopback, *, begin: int, n: int) -> list[int]:
    """Return at which of so many seconds the kernel was asked."""
    found = []
    for now in range(begin, begin + n):
        sampler.sample(link, loopback.fileno, now)
        if link.tcp is not None and link.tcp.looked_at == now:
            found.append(now)
    return found


def test_a_connection_without_traffic_is_looked_at_seldom(loopback: Loopback) -> None:
    """Ten thousand idle subscribers are no work; what is sent wakes the looks at once."""
    sampler, link = make_sampler(), Link("a")
    assert looks(sampler, link, loopback, begin=0, n=6) == [0, 1, 2, 3, 4, 5]
    assert looks(sampler, link, loopback, begin=6, n=10) == [10, 15]
    sampler.sent(link, 7, 100, 15.5)
    loopback.exchange()
    assert looks(sampler, link, loopback, begin=16, n=3) == [16, 17, 18]


def test_a_subscriber_of_large_messages_is_always_looked_at(loopback: Loopback) -> None:
    """Whether the next one is withheld is decided by what the kernel says."""
    sampler, link = make_sampler(), Link("a", had_large=True)
    assert len(looks(sampler, link, loopback, begin=0, n=20)) == 20


def test_retransmissions_are_those_since_the_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those among the segments sent since then; the kernel's counters have 32 bits.

    Loopback loses nothing, so the kernel's figures are made up.
    """
    looks = iter([(2**32 - 5, 2**32 - 1), (5, 1), (25, 1), (25, 1), (30, 6)])

    def read(_fileno: int) -> TcpInfo:
        segments, again = next(looks)
        return TcpInfo(0.1, 0.01, 0, 0, again, 0, 0, 0, segments, 0, False)

    monkeypatch.setattr("penstock.plugins.probing.sampler.read_tcp_info", read)
    sampler, link = make_sampler(), Link("a")
    found = []
    for second in range(5):
        sampler.sample(link, 0, 1000.0 + second)
        assert link.tcp is not None
        found.append(link.tcp.retransmit_ratio)
    assert found == [None, 0.2, 0.0, 0.0, 1.0]


def test_each_connection_says_what_it_sends_by(loopback: Loopback) -> None:
    """It is asked once: whoever connects again may have come by another listener."""
    sampler, link = make_sampler(), Link("a")
    for name in ("reno", "cubic"):
        loopback.broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        sampler.connected(link, 50.0)
        sampler.sample(link, loopback.fileno, 50.0)
        assert link.tcp is not None
        assert link.tcp.congestion_control == name


def test_a_connection_that_never_sent_has_no_rate(loopback: Loopback) -> None:
    """Nothing was acknowledged: the kernel's 0 is not a rate."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 50.0)
    assert link.tcp is not None
    assert link.tcp.delivery_rate is None


def test_probes_are_sent_only_where_they_are_a_source() -> None:
    """They cost traffic; their bytes are as many as the file says and cannot be compressed."""
    assert make_sampler().probe_topic is None
    sampler = make_sampler(sources=("probe",), probe_topic="rtt", probe_bytes=5_000)
    assert sampler.probe_topic == "rtt"
    assert len(sampler.probe_payload) == 5_000
    assert len(zlib.compress(sampler.probe_payload)) > 4_900


def test_an_answered_probe_is_a_sample_of_its_size() -> None:
    """It is outstanding until then."""
    sampler, link = make_sampler(sources=("probe",)), Link("a")
    sampler.probe_sent(link, 7, 50.0)
    assert (link.outstanding_since, link.outstanding_bytes) == (50.0, 10_000)
    assert not sampler.acknowledged(link, 6, 50.1)
    assert sampler.acknowledged(link, 7, 50.5)
    assert (link.rtt_latest, link.rtt_bytes, link.rtt_source) == (0.5, 10_000, "probe")
    assert link.outstanding_since is None


def test_a_probe_is_found_among_acknowledgements_that_come_together() -> None:
    """And the timed packet beside it."""
    sampler, link = make_sampler(sources=("puback", "probe")), Link("a")
    sampler.probe_sent(link, 7, 50.0)
    sampler.sent(link, 8, 100, 50.2)
    assert sampler.acknowledged_run(link, 5, 10, 50.5)
    assert (link.rtt_latest, link.rtt_source) == (0.5, "probe")
    assert link.outstanding_since is None


def test_the_largest_estimate_of_three_sources_counts(loopback: Loopback) -> None:
    """Whichever has it, for as long as it counts."""
    sampler = make_sampler(sources=("tcp_info", "puback", "probe"), max_age_seconds=10.0)
    link = Link("a")
    loopback.exchange()
    sampler.sample(link, loopback.fileno, 50.0)
    acknowledge(sampler, link, 20.0, at=51.0)
    sampler.probe_sent(link, 9, 22.0)
    sampler.acknowledged(link, 9, 52.0)
    assert (link.rtt_latest, link.rtt_source) == (30.0, "probe")
    sampler.probe_sent(link, 10, 52.0)
    sampler.acknowledged(link, 10, 53.0)
    assert (link.rtt_latest, link.rtt_source) == (20.0, "puback")
    sampler.sample(link, NO_SOCKET, 61.5)
    assert (link.rtt_latest, link.rtt_source) == (1.0, "probe")


def test_the_oldest_of_what_is_unanswered_is_outstanding() -> None:
    """Whether probe or normal delivery."""
    sampler, link = make_sampler(sources=("puback", "probe")), Link("a")
    sampler.sent(link, 7, 100, 50.0)
    sampler.probe_sent(link, 8, 51.0)
    assert (link.outstanding_since, link.outstanding_bytes) == (50.0, 100)
    sampler.acknowledged(link, 7, 52.0)
    assert (link.outstanding_since, link.outstanding_bytes) == (51.0, 10_000)
    sampler.connected(link, 53.0)
    assert link.outstanding_since is None
    assert not sampler.acknowledged(link, 8, 54.0)


def test_a_client_that_only_ignores_probes_is_not_overdue() -> None:
    """Its path works: what came after the probe was acknowledged."""
    sampler, link = make_sampler(sources=("probe",)), Link("a")
    sampler.probe_sent(link, 7, 50.0)
    assert not sampler.acknowledged(link, 8, 51.0)
    assert link.outstanding_since is None
    assert link.rtt_latest is None


def test_what_the_kernel_said_is_of_one_connection(loopback: Loopback) -> None:
    """It is void with the connection, and where there is none to ask."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 50.0)
    sampler.connected(link, 51.0)
    assert link.tcp is None
    sampler.sample(link, NO_SOCKET, 52.0)
    assert link.tcp is None
    sampler.sample(link, loopback.fileno, 53.0)
    assert link.tcp is not None
    assert link.tcp.looked_at == 53.0


def test_puback_reaches_the_link_with_its_size() -> None:
    """The acknowledgement of a normal delivery is a sample, and says so."""
    sampler, link = make_sampler(), Link("a")
    sampler.sent(link, 7, 100, 50.0)
    assert (link.outstanding_since, link.outstanding_bytes) == (50.0, 100)
    assert not sampler.acknowledged(link, 8, 50.1)
    assert sampler.acknowledged(link, 7, 50.5)
    assert (link.rtt_latest, link.rtt_bytes, link.rtt_source) == (0.5, 100, "puback")
    assert link.outstanding_since is None


def test_a_run_is_timed_by_its_first_packet() -> None:
    """As if each of its packets had been told of: the others are too early."""
    sampler, link = make_sampler(), Link("a")
    assert not sampler.acknowledged_run(link, 7, 3, 49.0)
    sampler.sent_run(link, 7, 3, 100, 50.0)
    assert (link.outstanding_since, link.outstanding_bytes) == (50.0, 100)
    assert not sampler.acknowledged_run(link, 8, 2, 50.1)
    assert sampler.acknowledged_run(link, 6, 2, 50.5)
    assert (link.rtt_latest, link.rtt_bytes) == (0.5, 100)
    assert not sampler.acknowledged_run(link, 7, 1, 50.6)


@pytest.mark.parametrize("had_large", [False, True])
def test_next_packet_is_timed_after_the_answer_and_the_spacing(*, had_large: bool) -> None:
    """A burst behind one loss is one sample; fewer are taken where nothing was to be withheld."""
    sampler, link = make_sampler(max_age_seconds=10.0), Link("a", had_large=had_large)
    sampler.sent(link, 7, 100, 50.0)
    assert link.quiet_until == 60.0
    sampler.sent(link, 8, 100, 59.9)
    assert link.outstanding_since == 50.0
    assert sampler.acknowledged(link, 7, 59.95)
    assert link.quiet_until == 59.95 + (0.1 if had_large else 0.5)
    sampler.sent(link, 9, 100, 60.0)
    assert link.outstanding_since is None
    sampler.sent(link, 10, 100, 61.0)
    assert link.outstanding_since == 61.0
    sampler.connected(link, 61.5)
    assert link.quiet_until <= 61.5


def test_large_packets_are_not_timed() -> None:
    """Above 10 kB an acknowledgement tells of the rate, not of congestion."""
    sampler, link = make_sampler(), Link("a")
    assert not acknowledge(sampler, link, 3.0, at=50.0, payload_bytes=10_001)
    assert link.rtt_latest is None
    assert acknowledge(sampler, link, 0.2, at=51.0, payload_bytes=10_000)


def test_slow_acknowledgements_win_over_the_kernel_behind_a_relay(loopback: Loopback) -> None:
    """The kernel sees the first hop only; the whole path counts, with all its fields."""
    sampler, link = make_sampler(), Link("a")
    acknowledge(sampler, link, 3.0, at=50.0)
    loopback.exchange()
    assert not sampler.sample(link, loopback.fileno, 50.5)
    assert (link.rtt_latest, link.rtt_min, link.rtt_source) == (3.0, 3.0, "puback")


def test_slow_acknowledgement_wins_at_the_time_of_a_look(loopback: Loopback) -> None:
    """Two estimates of one moment are two: gates hear of the second."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 50.0)
    assert acknowledge(sampler, link, 3.0, at=50.0)
    assert (link.rtt_latest, link.rtt_source) == (3.0, "puback")


def test_socket_without_any_rtt_is_no_estimate() -> None:
    """Before its first sample the kernel's RTT is 0, which is not a good path."""
    sampler, link = make_sampler(), Link("a")
    with socket.socket() as unconnected:
        assert not sampler.sample(link, unconnected.fileno(), 50.0)
    assert link.rtt_latest is None


def test_newer_acknowledgement_replaces_the_slow_one(loopback: Loopback) -> None:
    """Recovery shows with the next sample of the same source."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 49.0)
    acknowledge(sampler, link, 3.0, at=50.0)
    assert acknowledge(sampler, link, 0.25, at=51.0)
    assert link.rtt_latest == 0.25


def test_slow_acknowledgement_that_nothing_renews_grows_old(loopback: Loopback) -> None:
    """A subscriber is not congested for ever: after max_age_seconds the kernel speaks alone."""
    sampler, link = make_sampler(max_age_seconds=10.0), Link("a")
    acknowledge(sampler, link, 3.0, at=50.0)
    for now in (59.0, 60.0):
        loopback.exchange()
        assert not sampler.sample(link, loopback.fileno, now)
    loopback.exchange()
    assert sampler.sample(link, loopback.fileno, 60.5)
    assert link.rtt_source == "tcp_info"
    assert link.rtt_latest is not None
    assert link.rtt_latest < 1


def test_acknowledgements_alone_grow_old_too() -> None:
    """Without a socket to look at, the period still lets estimates age."""
    sampler, link = make_sampler(sources=("puback",), max_age_seconds=10.0), Link("a")
    acknowledge(sampler, link, 3.0, at=50.0)
    assert sampler.sample(link, NO_SOCKET, 60.5)
    assert link.rtt_latest is None


def test_packet_given_up_counts_at_once() -> None:
    """A client that never acknowledges one packet is judged by the next."""
    sampler, link = make_sampler(max_age_seconds=10.0), Link("a")
    sampler.sent(link, 7, 100, 50.0)
    sampler.sent(link, 8, 100, 60.0)
    assert link.rtt_latest == 10.0
    assert link.outstanding_since == 60.0
    assert sampler.acknowledged(link, 8, 60.25)
    assert link.rtt_latest == 0.25


def test_older_of_stall_and_timed_packet_is_outstanding(loopback: Loopback) -> None:
    """What has waited longest is what tells of the path."""
    loopback.fill()
    sampler, link = make_sampler(), Link("a")
    now = sample_until_outstanding(sampler, link, loopback, begin=50)
    sampler.sent(link, 7, 100, now)
    assert (link.outstanding_since, link.outstanding_bytes) == (now - 1, 0)
    other = Link("b")
    sampler.sent(other, 7, 100, 49.0)
    for second in (50.0, 51.0, 52.0):
        sampler.sample(other, loopback.fileno, second)
    assert (other.outstanding_since, other.outstanding_bytes) == (49.0, 100)


def test_source_left_out_of_the_file_is_not_used(loopback: Loopback) -> None:
    """The sources key turns each of them off."""
    link = Link("a")
    assert not acknowledge(make_sampler(sources=("tcp_info",)), link, 0.5, at=50.0)
    assert link.outstanding_since is None
    assert not make_sampler(sources=("puback",)).sample(link, loopback.fileno, 50.0)
    assert link.rtt_latest is None


def test_reconnected_subscriber_has_nothing_outstanding(loopback: Loopback) -> None:
    """What was sent on the old connection is void; a new socket's counters begin anew."""
    sampler, link = make_sampler(), Link("a")
    sampler.sample(link, loopback.fileno, 49.0)
    sampler.sent(link, 7, 100, 50.0)
    sampler.connected(link, 55.0)
    assert link.outstanding_since is None
    assert not sampler.acknowledged(link, 7, 56.0)
    assert sampler.sample(link, loopback.fileno, 57.0)


def test_what_was_known_before_a_long_absence_does_not_count() -> None:
    """Estimates age while nobody looks: a client that is back has none that is recent."""
    sampler, link = make_sampler(max_age_seconds=10.0), Link("a")
    acknowledge(sampler, link, 3.0, at=50.0)
    sampler.connected(link, 60.0)
    assert link.rtt_latest == 3.0
    sampler.connected(link, 60.1)
    assert link.rtt_latest is None


def test_subscribers_are_kept_apart() -> None:
    """One packet id towards two subscribers is two packets."""
    sampler, one, other = make_sampler(), Link("a"), Link("b")
    sampler.sent(one, 7, 100, 50.0)
    assert not sampler.acknowledged(other, 7, 50.1)
    assert sampler.acknowledged(one, 7, 50.5)
    assert other.rtt_latest is None


def test_forgotten_subscriber_begins_anew() -> None:
    """After its session has ended nothing is kept, and an unknown one may be forgotten."""
    sampler, link = make_sampler(), Link("a")
    sampler.sent(link, 7, 100, 50.0)
    sampler.forget(link)
    sampler.forget(link)
    assert not sampler.acknowledged(link, 7, 50.5)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 5), st.sampled_from(["sent", "acknowledged", "sample"])),
        max_size=50,
    )
)
def test_estimate_is_the_newest_or_none_when_too_old(steps: list[tuple[float, str]]) -> None:
    """At every step rtt_latest is set exactly when its sample is recent, as of the last look."""
    sampler, link, now, looked_at = make_sampler(max_age_seconds=5.0), Link("a"), 0.0, 0.0
    for gap, step in steps:
        now += gap
        if step == "sent":
            sampler.sent(link, 7, 100, now)
            continue
        looked_at = now
        before = (link.rtt_latest, link.rtt_updated_at)
        if step == "sample":
            is_new = sampler.sample(link, NO_SOCKET, now)
            assert is_new == (before != (link.rtt_latest, link.rtt_updated_at))
        else:
            sampler.acknowledged(link, 7, now)
        if step == "sample" and link.rtt_updated_at is not None:
            assert (link.rtt_latest is None) == (looked_at - link.rtt_updated_at > 5.0)


async def test_kernel_source_alone_needs_a_kernel_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On another system the file is refused, with what to write."""
    await make_plugin(sources=("tcp_info",)).start()
    monkeypatch.setattr(tcp_info, "_IS_LINUX", False)
    with pytest.raises(ConfigError, match=r"plugins.probing.sources: .* allowed: puback"):
        await make_plugin(sources=("tcp_info",)).start()


async def test_kernel_source_among_others_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On another system the default file works with what is left."""
    monkeypatch.setattr(tcp_info, "_IS_LINUX", False)
    await make_plugin().start()
    assert "tcp_info left out" in caplog.text
    assert "RTTs come from puback" in caplog.text


def counting(*events: tuple[str, float, float]) -> float:
    """Return the RTT that counts after (source, its RTT, when it came) in their order, at 60 s."""
    path = SubscriberPath(PubackTimer(10.0))
    for source, rtt, now in events:
        path.source(source).add(rtt, 0 if source == KERNEL else 100, now)
    newest = path.newest(60.0, 10.0)
    assert newest is not None
    return newest.latest


@pytest.mark.parametrize(
    ("events", "rtt"),
    [
        # An acknowledgement since the look was faster: good again.
        ([(KERNEL, 0.5, 57.0), (KERNEL, 0.4, 58.0), ("puback", 0.04, 58.5)], 0.04),
        ([(KERNEL, 0.4, 58.0), ("puback", 0.04, 58.5)], 0.04),
        # The acknowledgement is older than the look.
        ([("puback", 0.04, 57.5), (KERNEL, 0.4, 58.0)], 0.4),
        # The client is slower than its kernel, as behind a relay.
        ([(KERNEL, 0.4, 58.0), ("puback", 2.0, 58.5)], 2.0),
        # Of two sources of acknowledgements the slower one counts still.
        ([(KERNEL, 0.4, 58.0), ("puback", 0.04, 58.5), ("probe", 0.1, 58.6)], 0.1),
        # Nothing but the kernel.
        ([(KERNEL, 0.5, 57.0), (KERNEL, 0.4, 58.0)], 0.4),
        ([(KERNEL, 0.4, 58.0)], 0.4),
    ],
)
def test_smoothed_rtt_does_not_hide_that_the_path_is_good_again(
    events: list[tuple[str, float, float]], rtt: float
) -> None:
    """MQTT's acknowledgements are no faster than TCP's, and those after a look are newer."""
    assert counting(*events) == rtt


def read(**keys: Any) -> ProbingConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(ProbingConfig, keys, "policy.yaml", "plugins.probing")


WILDCARD = "a topic name (topic name 'a/+' holds a wildcard; allowed: no + and no # [MQTT-4.7.0-1])"


def test_no_key_is_needed() -> None:
    """A file that only names the plugin uses both sources each second."""
    config = read()
    assert config == ProbingConfig()
    assert config.sources == ("tcp_info", "puback")
    assert config.probe_period == 1.0


def test_sources_are_a_list_in_the_file() -> None:
    """One source alone may be named."""
    assert read(sources=["puback"]).sources == ("puback",)


@pytest.mark.parametrize(
    ("key", "value", "path", "allowed"),
    [
        ("sources", [], "sources", "at least one source, each once"),
        ("sources", ["puback", "puback"], "sources", "at least one source, each once"),
        ("sources", ["icmp"], "sources.0", "'tcp_info', 'puback' or 'probe'"),
        ("probe_period", 0, "probe_period", "greater than 0"),
        ("max_age_seconds", -1, "max_age_seconds", "greater than 0"),
        ("probe_topic", "a/+", "probe_topic", WILDCARD),
        ("probe_topic", "#", "probe_topic", WILDCARD.replace("a/+", "#")),
        (
            "probe_topic",
            "",
            "probe_topic",
            "a topic name (topic name is empty; allowed: one character or more [MQTT-4.7.3-1])",
        ),
        (
            "probe_topic",
            "$SYS/l",
            "probe_topic",
            "a topic name without $ at its beginning, as the broker's own have",
        ),
        ("probe_bytes", 0, "probe_bytes", "greater than or equal to 1"),
        ("probe_bytes", 1_000_001, "probe_bytes", "less than or equal to 1000000"),
        (
            "probe_topic",
            "other",
            "",
            "probe among sources, where probe_topic or probe_bytes is set",
        ),
        ("probe_bytes", 100, "", "probe among sources, where probe_topic or probe_bytes is set"),
        ("probe_period", 30, "", "max_age_seconds of at least probe_period"),
    ],
)
def test_wrong_value_names_key_value_and_what_is_allowed(
    key: str, value: Any, path: str, allowed: str
) -> None:
    """A user's mistake is told in the words of the file."""
    with pytest.raises(ConfigError) as caught:
        read(**{key: value})
    [problem] = caught.value.problems
    assert problem.path == f"plugins.probing.{path}".rstrip(".")
    assert problem.allowed == allowed


def test_probes_are_as_the_file_says() -> None:
    """By default those of paper 002: 10 KB on the topic latency."""
    assert (read().probe_topic, read().probe_bytes) == ("latency", 10_000)
    config = read(sources=["probe"], probe_topic="rtt/far", probe_bytes=1_000_000)
    assert (config.probe_topic, config.probe_bytes) == ("rtt/far", 1_000_000)


def test_unknown_key_suggests_the_nearest() -> None:
    """A misspelt key is no silence."""
    with pytest.raises(ConfigError, match=r"probe_peroid: read an unknown key.*probe_period"):
        read(probe_peroid=1)
