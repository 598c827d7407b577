from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import flame_graph
from benchmarks.errors import BenchmarkError
from benchmarks.flame_graph import draw, grow, lay_out, read_frame, read_stacks
from penstock.netem.runs.broker_process import find_program

PNG = b"\x89PNG"
STACKS = [
    (
        "main (broker/__main__.py:35);uv_run (core.c:464);uv__read (stream.c:1154);"
        "data_received (broker/network/transport.py:285);write (loop.c:1);Py_DECREF (object.h:5);"
        "write (libc.so.6) 60"
    ),
    (
        "main (broker/__main__.py:35);uv_run (core.c:464);uv__read (stream.c:1154);"
        "data_received (broker/network/transport.py:285) 30"
    ),
    "main (broker/__main__.py:35);uv_run (core.c:464);epoll_pwait (libc.so.6) 10",
    "worker (threading.py:1);0x7f (libc.so.6) 500",
]


def can_watch() -> bool:
    """Say whether py-spy is there and may look into a process that it has not started."""
    try:
        find_program("py-spy")
    except BenchmarkError:
        return False
    return os.geteuid() == 0


def test_samples_of_the_loop_are_told_apart_by_kind() -> None:
    """The top of a stack is what took the time; threads that wait and inlined helpers are out."""
    root, tops = grow(read_stacks(STACKS))
    assert root.samples == 90
    assert tops == {"kernel": 60, "Python": 30, "waiting": 10}
    drawn = {(depth, node.name): share for depth, _, share, node in lay_out(root)}
    assert drawn[0, "uv_run"] == 1.0
    assert drawn[2, "data_received"] == 1.0
    assert drawn[4, "write"] == pytest.approx(2 / 3)
    assert (1, "epoll_pwait") not in drawn


def test_system_call_counts_as_the_kernel_only_at_the_top() -> None:
    """A function of another library that is called like a system call is none."""
    assert read_frame("write (libc.so.6)", is_last=True) == ("kernel", "write")
    assert read_frame("write (libc.so.6)", is_last=False) == ("C", "write")
    assert read_frame("write (loop.c:7)", is_last=True) == ("uvloop", "write")
    assert read_frame("0x7fcd (libc.so.6)", is_last=True) == ("C", "C library")


def test_picture_is_small(tmp_path: Path) -> None:
    """Pictures stand in the repository."""
    root, _ = grow(read_stacks(STACKS))
    draw(root, "title", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)
    assert (tmp_path / "picture.png").stat().st_size < 200_000


@pytest.mark.skipif(not can_watch(), reason="takes py-spy and the right to trace")
def test_row_is_watched_while_it_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program draws a row of the real broker."""
    arguments = ["qos1_1to1", "--seconds", "0.5", "--directory", str(tmp_path)]
    assert flame_graph.main(arguments) == 0
    assert (tmp_path / "profile_qos1_1to1.png").read_bytes().startswith(PNG)
    assert "qos1_1to1 penstock: kernel " in capfd.readouterr().out


def test_wrong_names_are_told() -> None:
    """A peer whose stack would tell nothing, or a row that is none, ends with status 2."""
    assert flame_graph.main(["qos1_1to1", "--peer", "mosquitto"]) == 2
    assert flame_graph.main(["nothing"]) == 2
