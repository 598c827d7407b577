"""Pytest collects by the marks what was proven, and keeps docs/evidence/conformance.md.

A run in which every proving test has run rewrites the file where it differs; in continuous
integration, which sets ``CI``, a difference fails the run instead. Any narrower run leaves the
file alone. With ``--conformance-table FILE`` such a run also writes every statement with its tests.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.statements import ROOT, VERSIONS, Statement, statements
from tests.conformance.table import PASSED, full_table, problems, render

N_DIFFERENCES: Final = 20
"""Lines of the difference that are shown: enough to see what kind of difference it is."""

_ORDER: Final = ("failed", "skipped", PASSED)
"""Outcomes, the one that counts of several parameters of a test first."""


class ConformancePlugin:
    """Listens to one run.

    Attributes:
        root: of the repository.
        statements: by marker.
    """

    def __init__(
        self, root: Path = ROOT, known: Mapping[str, Mapping[str, Statement]] | None = None
    ) -> None:
        self.root = root
        self.statements = known or {marker: statements(marker) for marker in VERSIONS}
        self._numbers: dict[str, list[tuple[str, str]]] = {}
        self._outcomes: dict[str, str] = {}
        self._is_narrowed = False
        self._complaints: list[str] = []
        self._notes: list[str] = []

    @property
    def file(self) -> Path:
        """The file that is kept."""
        return self.root / "docs" / "evidence" / "conformance.md"

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        """Add the option for the table of all statements."""
        parser.addoption(
            "--conformance-table",
            type=Path,
            metavar="FILE",
            help="write each statement of MQTT with its tests, after a run of all of these",
        )

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A proving test that will not run makes the run a narrow one."""
        if any(_numbers(item) for item in items):
            self._is_narrowed = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """So does a file that cannot be read."""
        if report.failed:
            self._is_narrowed = True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what the run's tests are to prove."""
        for item in session.items:
            if numbers := _numbers(item):
                self._numbers[item.nodeid] = numbers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test has ended."""
        if report.when == "call" or report.outcome != PASSED:
            before = self._outcomes.get(report.nodeid, PASSED)
            self._outcomes[report.nodeid] = min(before, report.outcome, key=_ORDER.index)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what one of several processes has collected; each collects everything."""
        collected = getattr(node, "workeroutput", {})  # none of a process that has crashed
        self._numbers.update(collected.get("proving", {}))
        self._is_narrowed |= collected.get("is_narrowed", True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the file, after a whole run."""
        workeroutput = getattr(session.config, "workeroutput", None)
        if workeroutput is not None:  # one of several processes: the first one keeps the file
            workeroutput["proving"] = self._numbers
            workeroutput["is_narrowed"] = self._is_narrowed
            return
        if self._is_narrow(session.config):
            return
        proofs = self._proofs()
        for marker in VERSIONS:
            marked = {number: min(tests) for number, tests in proofs[marker].items()}
            self._complaints += problems(marker, self.statements[marker], marked)
        if (table := session.config.getoption("conformance_table")) is not None:
            table.write_text(full_table(proofs, self.statements))
        text = render(proofs, self.statements)
        before = self.file.read_text() if self.file.exists() else ""
        if text != before:
            if os.environ.get("CI"):
                self._complaints.append(_difference(before, text))
            else:
                self.file.write_text(text)
                self._notes.append("docs/evidence/conformance.md is rewritten: commit it")
        if self._complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is wrong, and what was written."""
        if self._complaints or self._notes:
            terminalreporter.section("conformance")
            for line in (*self._complaints, *self._notes):
                terminalreporter.line(line)

    def _is_narrow(self, config: pytest.Config) -> bool:
        """Say whether a proving test may exist that has not run."""
        everything = {self.root.resolve(), (self.root / "tests").resolve()}
        here = config.invocation_params.dir
        options = ("collectonly", "ignore", "ignore_glob", "lf")
        return (
            self._is_narrowed
            or not everything & {(here / argument).resolve() for argument in config.args}
            or any(config.getoption(option, None) for option in options)
            or not self._numbers.keys() <= self._outcomes.keys()
        )

    def _proofs(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return, by marker and number, the tests with their outcomes, parameters merged."""
        proofs: dict[str, dict[str, dict[str, str]]] = {marker: {} for marker in VERSIONS}
        for nodeid, numbers in self._numbers.items():
            test = nodeid.partition("[")[0]
            for marker, number in numbers:
                outcomes = proofs[marker].setdefault(number, {})
                both = outcomes.get(test, PASSED), self._outcomes[nodeid]
                outcomes[test] = min(both, key=_ORDER.index)
        return proofs


def _numbers(item: pytest.Item) -> list[tuple[str, str]]:
    """Return what a test is marked to prove, as (marker, number)."""
    return [
        (marker, str(number))
        for marker in VERSIONS
        for mark in item.iter_markers(marker)
        for number in mark.args
    ]


def _difference(before: str, after: str) -> str:
    """Say in what the file differs from what the run has shown."""
    lines = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), "committed", "this run", lineterm="", n=0
        )
    )
    shown = lines[:N_DIFFERENCES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} lines more")
    return "\n".join(
        [
            "docs/evidence/conformance.md is not what this run has shown: run",
            '    pytest -m "mqtt5 or mqtt311"',
            "and commit the file. The difference:",
            *shown,
        ]
    )
