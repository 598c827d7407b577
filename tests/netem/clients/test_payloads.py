from __future__ import annotations

import pytest

from penstock.netem.clients.payloads import HEAD_BYTES, Head, Times, read_head, write_payload

HEAD = Head(publisher=65_535, stream=7, number=4_000_000_000, due_at=12.000_000_1)


@pytest.mark.parametrize("filling", [b"", b"x" * 1_000])
def test_a_head_is_read_as_it_was_written(filling: bytes) -> None:
    """Whatever stands behind it, a message says which one it is."""
    payload = write_payload(HEAD, filling)
    assert len(payload) == HEAD_BYTES + len(filling)
    assert read_head(payload) == HEAD


@pytest.mark.parametrize("payload", [b"", b"pnst", b"2.0.11" * 10])
def test_messages_of_others_are_told_from_ours(payload: bytes) -> None:
    """What a broker says of itself is no message of the run."""
    assert read_head(payload) is None


def test_the_least_payload_of_a_scenario_holds_a_head() -> None:
    """A scenario may ask for 24 bytes."""
    assert HEAD_BYTES <= 24


def test_periodic_messages_are_due_before_the_end() -> None:
    """The first after its delay, the others a period apart, none at the end or later."""
    assert Times(0.25, 0.5, "periodic", 1.75, "1").due_seconds() == [0.25, 0.75, 1.25]
    assert Times(2, 0.5, "periodic", 1.75, "1").due_seconds() == []
    thousandth = Times(0, 0.1, "periodic", 1_000, "1").due_seconds()[1_000]
    assert thousandth == 0.1 * 1_000


def test_random_messages_have_the_mean_asked_for_and_repeat_with_the_seed() -> None:
    """Exponential times: their mean is the period, and the same seed has the same times."""
    times = Times(0, 0.5, "poisson", 2_000, "1 publisher stream").due_seconds()
    assert 3_800 < len(times) < 4_200
    assert times == sorted(times)
    assert times == Times(0, 0.5, "poisson", 2_000, "1 publisher stream").due_seconds()
    assert times != Times(0, 0.5, "poisson", 2_000, "2 publisher stream").due_seconds()


def test_a_random_phase_lies_in_the_first_period_and_repeats_with_the_seed() -> None:
    """Messages are a period apart from there; publishers with other seeds have other phases."""
    phases = []
    for n in range(400):
        times = Times("random", 4.0, "periodic", 12.0, f"1 publisher-{n} large").due_seconds()
        assert 0 <= times[0] < 4.0
        assert times == [times[0], times[0] + 4.0, times[0] + 8.0]
        phases.append(times[0])
    assert sum(phases) / len(phases) == pytest.approx(2.0, rel=0.1)
    again = Times("random", 4.0, "periodic", 12.0, "1 publisher-0 large").due_seconds()
    assert again[0] == phases[0]


def test_a_poisson_stream_with_a_random_phase_begins_as_it_goes_on() -> None:
    """The time to the first message is exponential, as all others."""
    firsts = [
        Times("random", 2.0, "poisson", 100.0, f"{n} publisher small").due_seconds()[0]
        for n in range(2_000)
    ]
    assert sum(firsts) / len(firsts) == pytest.approx(2.0, rel=0.1)
    assert max(firsts) > 6.0
