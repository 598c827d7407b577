from __future__ import annotations

from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links import engines
from penstock.netem.links.engines import Engine, choose_engine, instead_of_tc


@pytest.fixture
def no_tun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without TUN devices."""
    monkeypatch.setattr(engines, "TUN_DEVICE", tmp_path / "tun")


def test_auto_is_tun_where_there_is_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What our figures are from is what a user gets who does not choose."""
    (tmp_path / "tun").touch()
    monkeypatch.setattr(engines, "TUN_DEVICE", tmp_path / "tun")
    assert choose_engine("auto") is Engine.TUN
    assert choose_engine("tun") is Engine.TUN
    assert choose_engine("tc") is Engine.TC


@pytest.mark.usefixtures("no_tun")
def test_without_tun_devices_auto_is_tc_and_tun_is_refused() -> None:
    """The user is told what to load, and the way round."""
    assert choose_engine("auto") is Engine.TC
    with pytest.raises(NetemError, match="tun is missing; load the kernel module tun, or use"):
        choose_engine("tun")


def test_what_helps_where_the_kernel_lacks_something_is_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whom `auto` has given the engine tc for want of TUN devices is not sent back to those."""
    monkeypatch.setattr(engines, "TUN_DEVICE", tmp_path / "tun")
    assert instead_of_tc() == "load it, or the kernel module tun for the engine tun"
    (tmp_path / "tun").touch()
    assert instead_of_tc() == "use the engine tun"


def test_without_the_program_tc_its_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program that is missing is named with its package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetemError, match="the program tc is missing; install iproute2"):
        choose_engine("tc")


def test_another_name_is_refused() -> None:
    """The text says what was read and what is allowed."""
    with pytest.raises(NetemError, match="engine: read 'tunnel'; allowed: auto, tun, tc"):
        choose_engine("tunnel")
