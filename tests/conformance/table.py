"""docs/evidence/conformance.md: what each statement asks for, and the tests that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.conformance.statements import VERSIONS, Statement

PASSED: Final = "passed"

Proofs = Mapping[str, Mapping[str, str]]
"""Statement number to test (``tests/FILE.py::NAME``) to its outcome."""

INTRODUCTION: Final = """\
# Conformance

Each normative statement of MQTT 5.0 and 3.1.1, by its number in Appendix B of the specification,
and the tests that prove that the broker keeps it. What a statement asks for stands here in our
own words; the specification's hold. A statement that binds clients alone, or a feature that the
broker does not have, is not applicable, with the reason.

The run of the tests writes this file: `script/test`, or the proving tests alone,
`pytest -m "mqtt5 or mqtt311"`. A test says what it proves by `@pytest.mark.mqtt5("3.1.0-1")` and
`@pytest.mark.mqtt311("3.1.0-1")`.
"""


def problems(
    marker: str,
    statements: Mapping[str, Statement],
    marked: Mapping[str, str],
) -> list[str]:
    """Return what is wrong between the statements of a version and the marks, in words.

    Args:
        marker: key of `VERSIONS`.
        statements: of the version.
        marked: number to one place where it is marked.
    """
    name = VERSIONS[marker]
    found = []
    for number, place in sorted(marked.items()):
        if number not in statements:
            found.append(f"{place}: {name} has no statement {number!r}")
        elif statements[number].not_applicable:
            found.append(f"{place}: {name} statement {number} is declared not applicable")
    for number, statement in statements.items():
        if number not in marked and not statement.not_applicable:
            found.append(f"{name} statement {number} has neither a test nor a reason")
    return found


def render(proofs: Mapping[str, Proofs], statements: Mapping[str, Mapping[str, Statement]]) -> str:
    """Return the whole file.

    Args:
        proofs: by marker.
        statements: by marker.
    """
    counts = []
    chapters = []
    for marker, name in VERSIONS.items():
        counts.append(_count(name, proofs[marker], statements[marker]))
        chapters.append(_chapter(name, proofs[marker], statements[marker]))
    head = "| Version | Statements | Proven | Not proven | Not applicable |"
    rows = [head, "| --- | --- | --- | --- | --- |", *counts]
    return "\n".join([INTRODUCTION, *rows, "", *chapters])


def _state(number: str, proofs: Proofs, statement: Statement) -> str:
    if statement.not_applicable:
        return "not applicable"
    outcomes = proofs.get(number)
    return "proven" if outcomes and set(outcomes.values()) == {PASSED} else "not proven"


def _count(name: str, proofs: Proofs, statements: Mapping[str, Statement]) -> str:
    states = [_state(number, proofs, statement) for number, statement in statements.items()]
    columns = [len(states), *map(states.count, ("proven", "not proven", "not applicable"))]
    return f"| {name} | {' | '.join(map(str, columns))} |"


def _chapter(name: str, proofs: Proofs, statements: Mapping[str, Statement]) -> str:
    rows = [f"## {name}", "", "| Statement | Binds | What it asks for | Proven by |"]
    rows.append("| --- | --- | --- | --- |")
    for number, statement in statements.items():
        if statement.not_applicable:
            proof = f"*not applicable*: {statement.not_applicable}"
        elif not proofs.get(number):
            proof = "**no test**"
        else:
            proof = ", ".join(
                _test(test, outcome) for test, outcome in sorted(proofs[number].items())
            )
        rows.append(f"| {number} | {statement.binds} | {statement.says} | {proof} |")
    return "\n".join([*rows, ""])


def _test(test: str, outcome: str) -> str:
    """Return a link to a test's file that names the test, and its outcome unless it passed."""
    path, _, name = test.partition("::")
    link = f"[{name.removeprefix('test_')}](../{path})"
    return link if outcome == PASSED else f"**{outcome}**: {link}"
