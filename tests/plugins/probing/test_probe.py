from __future__ import annotations

import pytest

from penstock.plugins.probing.probe import PACKET_IDS, ProbeTimer


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
