from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.plugin import ConformancePlugin
from tests.conformance.statements import Statement

pytest_plugins = ["pytester"]

KNOWN: Final = {
    "mqtt5": {"1.1.1-1": Statement("1.1.1-1", "server", "It is so.")},
    "mqtt311": {"1.1.1-1": Statement("1.1.1-1", "server", "It is so.")},
}

PROVING: Final = """
import pytest

@pytest.mark.mqtt5("1.1.1-1")
@pytest.mark.mqtt311("1.1.1-1")
def test_it(): assert {holds}
"""
OTHER: Final = "def test_other(): pass"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs pytest on a small project, outside of continuous integration."""
    monkeypatch.delenv("CI", raising=False)
    (pytester.path / "docs" / "evidence").mkdir(parents=True)
    (pytester.path / "tests").mkdir()
    pytester.makeini(
        "[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n"
        "markers =\n  mqtt5: statement\n  mqtt311: statement\n"
    )

    def run(*arguments: str, holds: bool = True) -> pytest.RunResult:
        (pytester.path / "tests" / "test_it.py").write_text(PROVING.format(holds=holds))
        (pytester.path / "tests" / "test_other.py").write_text(OTHER)
        plugin = ConformancePlugin(pytester.path, KNOWN)
        return pytester.runpytest_inprocess("-p", "no:asyncio", *arguments, plugins=[plugin])

    return run


def table(pytester: pytest.Pytester) -> Path:
    """Return the file that the plugin keeps."""
    return pytester.path / "docs" / "evidence" / "conformance.md"


@pytest.mark.parametrize("arguments", [(), ("tests",), ("-m", "mqtt5 or mqtt311")], ids=str)
def test_a_whole_run_writes_the_table(
    pytester: pytest.Pytester, run: Run, arguments: tuple[str, ...]
) -> None:
    """Where every proving test has run the file is written, the same each time."""
    result = run(*arguments)
    assert result.ret == 0
    assert "| MQTT 5.0 | 1 | 1 | 0 | 0 |" in table(pytester).read_text()
    result.stdout.fnmatch_lines(["*conformance.md is rewritten*"])
    result = run(*arguments)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*conformance.md*")


@pytest.mark.parametrize(
    "arguments",
    [("tests/test_other.py",), ("-k", "other"), ("--ignore=tests/test_it.py",), ("--co",)],
    ids=str,
)
def test_a_narrow_run_neither_fails_nor_writes(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A run without some of the proving tests says nothing of the table, in CI as well."""
    monkeypatch.setenv("CI", "true")
    result = run(*arguments)
    assert result.ret == 0
    assert not table(pytester).exists()


def test_a_difference_fails_in_continuous_integration(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI the committed file must be what the run shows; the difference is printed."""
    table(pytester).write_text("# Old\n")
    monkeypatch.setenv("CI", "true")
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*is not what this run has shown*", "-# Old"])
    assert table(pytester).read_text() == "# Old\n"


def test_a_failing_test_shows_as_failing(pytester: pytest.Pytester, run: Run) -> None:
    """A statement whose test fails is not proven."""
    assert run(holds=False).ret == pytest.ExitCode.TESTS_FAILED
    text = table(pytester).read_text()
    assert "| MQTT 5.0 | 1 | 0 | 1 | 0 |" in text
    assert "**failed**: `tests/test_it.py::test_it`" in text


def test_every_statement_is_written_where_it_is_asked_for(
    pytester: pytest.Pytester, run: Run
) -> None:
    """With its tests, into a file of one's own."""
    assert run("--conformance-table", "all.md").ret == 0
    row = "| 1.1.1-1 | server | It is so. | `tests/test_it.py::test_it` |"
    assert (pytester.path / "all.md").read_text().count(row) == 2


def test_a_statement_without_a_test_fails_the_run(pytester: pytest.Pytester, run: Run) -> None:
    """The last test of a statement does not go unnoticed."""
    run()
    (pytester.path / "tests" / "test_it.py").unlink()
    plugin = ConformancePlugin(pytester.path, KNOWN)
    result = pytester.runpytest_inprocess("-p", "no:asyncio", plugins=[plugin])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["MQTT 5.0 statement 1.1.1-1 has neither a test nor a reason"])
