"""Charts of the telemetry, about a megabyte each, which are the demo's large messages.

Rendering takes some tenths of a second of a processor, so it happens in a process of its own:
the clocks of the demo's clients must not wait for it.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

PICTURE_BYTES: Final = 1_000_000
"""The wanted length of a picture; its resolution follows the length of the previous one."""

FIRST_DPI: Final = 200.0
MIN_DPI: Final = 100.0
MAX_DPI: Final = 400.0

Series = Mapping[str, Sequence[float]]
"""The values of each metric, oldest first; all of one length."""


def render(series: Series, title: str, dpi: float) -> bytes:
    """Return a PNG: every metric as a row of a heat map, and some as lines."""
    names = [name for name in sorted(series) if min(series[name]) < max(series[name])]
    values = np.array([series[name] for name in names], dtype=float)
    ranks = np.array([np.searchsorted(np.sort(row), row) for row in values])
    figure = Figure(figsize=(9, 6.5), dpi=dpi)
    figure.suptitle(title)
    heat, lines = figure.subplots(2, 1, height_ratios=(4, 1))
    figure.subplots_adjust(left=0.16, bottom=0.05, right=0.98, top=0.9)
    heat.imshow(ranks, aspect="auto", interpolation="bicubic", cmap="turbo")
    heat.set_yticks(range(len(names)), names, fontsize=6)
    heat.set_title("each metric over time, from its least (blue) to its most (red)", fontsize=8)
    for name in [name for name in series if name.startswith("cpu.core")]:
        lines.plot(series[name], label=name, linewidth=1)
    lines.legend(fontsize=6, loc="upper left")
    file = io.BytesIO()
    # Little compression: a camera on a small machine would do the same.
    figure.savefig(file, format="png", pil_kwargs={"compress_level": 1})
    return file.getvalue()


def _begin() -> None:
    """Leave Ctrl-C to the demo, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mpl.use("Agg")


class Painter:
    """A process of its own that renders pictures, one at a time."""

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(1, get_context("spawn"), _begin)
        self._dpi = FIRST_DPI

    def paint(self, series: Series, title: str) -> Future[bytes]:
        """Start on a picture."""
        future = self._executor.submit(render, series, title, self._dpi)
        future.add_done_callback(self._learn)
        return future

    def _learn(self, future: Future[bytes]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        dpi = self._dpi * (PICTURE_BYTES / len(future.result())) ** 0.5
        self._dpi = min(MAX_DPI, max(MIN_DPI, dpi))

    def close(self) -> None:
        """End the process."""
        self._executor.shutdown(wait=True, cancel_futures=True)
