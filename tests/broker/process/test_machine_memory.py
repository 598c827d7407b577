from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.process.machine_memory import machine_memory_bytes

GIB = 1 << 30


def test_where_there_are_no_control_groups_it_is_all_of_the_machine(tmp_path: Path) -> None:
    """As on other systems than Linux."""
    assert machine_memory_bytes(8 * GIB, tmp_path / "none", tmp_path) == 8 * GIB
    assert machine_memory_bytes(None, tmp_path / "none", tmp_path) > GIB // 8


@pytest.mark.parametrize(
    ("own", "above", "wanted"),
    [
        ("max", "max", 8 * GIB),
        (str(GIB), "max", GIB),
        ("max", str(2 * GIB), 2 * GIB),
        (str(64 * GIB), "max", 8 * GIB),
    ],
)
def test_a_control_group_and_those_above_it_may_allow_less(
    own: str, above: str, wanted: int, tmp_path: Path
) -> None:
    """Version 2: `MemoryMax` of a systemd unit, or of its slice."""
    group = tmp_path / "system.slice" / "penstock.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(own + "\n")
    (group.parent / "memory.max").write_text(above + "\n")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/system.slice/penstock.service\n")
    assert machine_memory_bytes(8 * GIB, groups, tmp_path) == wanted


def test_a_container_has_its_own_group_at_the_root(tmp_path: Path) -> None:
    """The path that it is told is the host's, which is not mounted."""
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/../../docker/abc\n")
    assert machine_memory_bytes(8 * GIB, groups, tmp_path) == GIB


def test_version_1_of_control_groups_has_another_name_for_it(tmp_path: Path) -> None:
    """Its number for no limit is larger than any machine."""
    group = tmp_path / "memory" / "docker"
    group.mkdir(parents=True)
    limit = group / "memory.limit_in_bytes"
    groups = tmp_path / "cgroup"
    groups.write_text("5:cpu,cpuacct:/docker\n4:memory:/docker\n0::/docker\n")
    limit.write_text(f"{GIB}\n")
    assert machine_memory_bytes(8 * GIB, groups, tmp_path) == GIB
    limit.write_text("9223372036854771712\n")
    assert machine_memory_bytes(8 * GIB, groups, tmp_path) == 8 * GIB
