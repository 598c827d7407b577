from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.probing.estimators import MovingAverage, SourceEstimates, WindowedMinimum
from penstock.plugins.probing.rtt_sources import (
    PACKET_IDS,
    ProbeTimer,
    PubackSample,
    PubackTimer,
    StallDetector,
)

rtts = st.floats(1e-6, 100)
timed_rtts = st.lists(st.tuples(st.floats(0, 50), rtts), min_size=1, max_size=60)


@given(timed_rtts)
def test_windowed_minimum_covers_half_to_whole_window(timed: list[tuple[float, float]]) -> None:
    """The least of the last half window is always covered, nothing older than the window is."""
    minimum = WindowedMinimum(100.0)
    now, seen = 0.0, []
    for gap, rtt in timed:
        now += gap
        seen.append((now, rtt))
        value = minimum.add(rtt, now)
        assert value <= min(r for at, r in seen if at > now - 50)
        assert value >= min(r for at, r in seen if at >= now - 100 - 1e-9)


def test_windowed_minimum_forgets_after_a_silence() -> None:
    """A sample after more than a window stands alone."""
    minimum = WindowedMinimum(100.0)
    minimum.add(0.1, 0.0)
    assert minimum.add(0.5, 100.0) == 0.5


def test_moving_average_begins_as_plain_mean() -> None:
    """The first sample does not weigh more than the second."""
    average = MovingAverage(300.0)
    average.add(1.0, 0.0)
    average.add(2.0, 1.0)
    average.add(6.0, 2.0)
    assert average.value == pytest.approx(3.0)


def test_moving_average_fades_with_time_and_not_with_samples() -> None:
    """After one window of another RTT the old one weighs 1/e, however often it was sampled."""
    for step in (0.1, 1.0, 10.0):
        average = MovingAverage(100.0)
        for second in range(2_000):
            average.add(1.0, second)
        for n in range(1, round(100 / step) + 1):
            average.add(0.0, 1_999 + n * step)
        assert average.value == pytest.approx(math.exp(-1), rel=0.01)


@given(timed_rtts)
def test_moving_average_stays_within_its_samples(timed: list[tuple[float, float]]) -> None:
    """A weighted mean is never outside of what it is made from."""
    average, now = MovingAverage(300.0), 0.0
    for gap, rtt in timed:
        now += gap
        average.add(rtt, now)
    samples = [rtt for _, rtt in timed]
    assert average.value is not None
    assert min(samples) * (1 - 1e-9) <= average.value <= max(samples) * (1 + 1e-9)


def test_a_source_knows_the_newest_sample_the_least_and_the_average() -> None:
    """And of which packet and time the newest is."""
    source = SourceEstimates("puback")
    source.add(0.1, 100, 0.0)
    source.add(0.9, 200, 1.0)
    assert (source.latest, source.payload_bytes, source.updated_at) == (0.9, 200, 1.0)
    assert (source.minimum.value, source.average.value) == (0.1, 0.5)


def test_pure_modules_load_without_clock_chance_and_io() -> None:
    """Estimators, timer and stall detector import with asyncio, time and the like blocked."""
    blocked = ["asyncio", "selectors", "socket", "ssl", "threading", "time", "random"]
    program = (
        f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n"
        "from penstock.plugins.probing import estimators, rtt_sources\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def sent(packet_id: int = 7) -> ProbeTimer:
    """Return a timer whose probe was sent at 50 s."""
    timer = ProbeTimer()
    timer.packet_id, timer.sent_at = packet_id, 50.0
    return timer


def test_the_puback_of_the_probe_is_a_sample() -> None:
    """From handing over to acknowledgement; once."""
    timer = sent()
    assert timer.acknowledged(7, 1, 50.25) == 0.25
    assert timer.packet_id == 0
    assert timer.acknowledged(7, 1, 51.0) is None


@pytest.mark.parametrize("first", [5, 6, 7])
def test_the_probe_is_found_in_a_run_of_acknowledgements(first: int) -> None:
    """Wherever it stands."""
    assert sent().acknowledged(first, 3, 51.0) == 1.0


@pytest.mark.parametrize("first", [5, 6, PACKET_IDS, PACKET_IDS - 1000])
def test_acknowledgements_of_what_was_sent_before_say_nothing(first: int) -> None:
    """The probe goes on being timed; identifiers begin anew behind the last."""
    timer = sent()
    assert timer.acknowledged(first, 1, 51.0) is None
    assert (timer.packet_id, timer.sent_at) == (7, 50.0)


@pytest.mark.parametrize(("probe", "later"), [(7, 8), (7, 1007), (PACKET_IDS, 1)])
def test_a_client_that_answers_what_came_after_does_not_answer_probes(
    probe: int, later: int
) -> None:
    """[MQTT-4.6.0-2]: PUBACKs come in order, so the path is not what keeps this one back."""
    timer = sent(probe)
    assert timer.acknowledged(later, 1, 51.0) is None
    assert timer.packet_id == 0


def with_packet() -> PubackTimer:
    """Return a timer that times packet 7, of 500 bytes, since second 100."""
    timer = PubackTimer()
    timer.sent(7, 500, 100.0)
    return timer


def test_acknowledgement_of_a_timed_packet_is_a_sample() -> None:
    """RTT from hand-over to PUBACK, with the payload size it was timed on."""
    timer = with_packet()
    assert (timer.sent_at, timer.payload_bytes) == (100.0, 500)
    assert timer.acknowledged(7, 1, 100.25) == PubackSample(0.25, 500)
    assert timer.sent_at is None


def test_acknowledgement_of_another_packet_is_none() -> None:
    """Samples are matched by packet id, whatever the order of acknowledgements."""
    timer = with_packet()
    assert timer.acknowledged(8, 100, 100.1) is None
    assert timer.acknowledged(1, 6, 100.1) is None
    assert timer.acknowledged(1, 7, 100.25) == PubackSample(0.25, 500)


def test_acknowledgement_without_timed_packet_is_none() -> None:
    """A second PUBACK of the same packet id, or packet id 0, says nothing."""
    timer = with_packet()
    timer.acknowledged(7, 1, 100.25)
    assert timer.acknowledged(7, 1, 100.5) is None
    assert PubackTimer().acknowledged(0, 1, 1.0) is None


def test_unanswered_packet_makes_way_and_its_age_counts() -> None:
    """A packet id that is never acknowledged ends as a sample of the least its RTT can be."""
    timer = with_packet()
    assert timer.sent(9, 300, 110.0) == PubackSample(10.0, 500)
    assert timer.acknowledged(7, 1, 110.1) is None
    assert timer.acknowledged(9, 1, 110.5) == PubackSample(0.5, 300)


def test_estimate_is_new_only_while_bytes_are_acknowledged() -> None:
    """The kernel keeps its last RTT for ever; acknowledged bytes tell when it is news."""
    stall = StallDetector()
    assert stall.look(0, is_waiting=False, now=0.0)
    assert not stall.look(0, is_waiting=False, now=1.0)
    assert stall.look(10, is_waiting=False, now=2.0)


def test_stall_begins_at_the_first_look_that_saw_the_waiting_byte() -> None:
    """Two looks without progress prove that the oldest byte waits since the first of them."""
    stall = StallDetector()
    since = []
    for now in (5.0, 6.0, 7.0):
        stall.look(10, is_waiting=True, now=now)
        since.append(stall.stalled_since)
    assert since == [None, 5.0, 5.0]


def test_bytes_sent_after_an_idle_look_wait_since_the_next_look() -> None:
    """What was sent between two looks has an unknown age: none is claimed."""
    stall = StallDetector()
    stall.look(10, is_waiting=False, now=5.0)
    since = []
    for now in (6.0, 7.0):
        stall.look(10, is_waiting=True, now=now)
        since.append(stall.stalled_since)
    assert since == [None, 6.0]


def test_progress_ends_a_stall() -> None:
    """A path that acknowledges slowly is slow, not stalled."""
    stall = StallDetector()
    for now in (1.0, 2.0):
        stall.look(10, is_waiting=True, now=now)
    assert stall.look(11, is_waiting=True, now=3.0)
    assert stall.stalled_since is None


def test_nothing_waiting_ends_a_stall() -> None:
    """An idle connection is not stalled."""
    stall = StallDetector()
    for now in (1.0, 2.0):
        stall.look(10, is_waiting=True, now=now)
    stall.look(10, is_waiting=False, now=3.0)
    assert stall.stalled_since is None
