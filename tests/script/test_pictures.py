from __future__ import annotations

import random

import pytest

from script.demo_program.pictures import Painter, render


def series(n_values: int = 30) -> dict[str, list[float]]:
    """Return made-up telemetry."""
    rng = random.Random(1)  # noqa: S311 (no secret)
    names = ["cpu.core0", "cpu.core1", *(f"metric{number}" for number in range(8))]
    return {name: [rng.random() for _ in range(n_values)] for name in names}


def test_a_picture_is_a_png_of_the_asked_resolution() -> None:
    """It is 9 by 6.5 inches of true image."""
    payload = render(series(), "here", dpi=40)
    assert payload.startswith(b"\x89PNG\r\n\x1a\n")
    size = int.from_bytes(payload[16:20], "big"), int.from_bytes(payload[20:24], "big")
    assert size == (360, 260)


def test_metrics_that_stand_still_are_left_out_and_do_no_harm() -> None:
    """A value that never changes has no least and most."""
    assert render(series() | {"still": [5.0] * 30}, "here", dpi=40).startswith(b"\x89PNG")


def test_pictures_come_to_be_a_megabyte() -> None:
    """The resolution follows the size of the picture before."""
    painter = Painter()
    try:
        for _ in range(3):
            payload = painter.paint(series(), "here").result(60)
    finally:
        painter.close()
    assert len(payload) == pytest.approx(1_000_000, rel=0.2)
