from __future__ import annotations

from pathlib import Path

import pytest

from script.demo_program.errors import DemoError
from script.demo_program.programs import Programs
from tests.helpers.process import is_there


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    """What stands in the log's end is in the error, so nobody has to look for it."""
    with Programs(tmp_path) as programs:
        program = programs.start("broker", "broker", "-c", str(tmp_path / "none.yaml"))
        with pytest.raises(DemoError, match=r"(?s)status 2.*none\.yaml") as caught:
            program.wait_for("listening", 60)
    assert str(tmp_path / "broker.log") in str(caught.value)


def test_all_programs_are_ended_though_the_demo_fails(tmp_path: Path) -> None:
    """Whatever happens, nothing that was started stays."""
    pids = []

    def fail() -> None:
        with Programs(tmp_path) as programs:
            for name in ("one", "two"):
                program = programs.start(name, "penstock.netem.links.relay", "127.0.0.1:9")
                program.wait_for("listening", 60)
                pids.append(program.pid)
            programs.check()
            raise DemoError("something")

    with pytest.raises(DemoError, match="something"):
        fail()
    assert len(pids) == 2
    assert not [pid for pid in pids if is_there(pid)]


def test_a_program_that_has_gone_is_noticed(tmp_path: Path) -> None:
    """The demo does not go on without one of its programs."""
    with Programs(tmp_path) as programs:
        program = programs.start("link", "penstock.netem.links.relay", "127.0.0.1:9")
        program.wait_for("listening", 60)
        program.ask_to_end()
        assert program.wait(60) == 0
        with pytest.raises(DemoError, match="link: ended with status 0"):
            programs.check()
