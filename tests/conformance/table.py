"""The text of docs/evidence/conformance.md, and of the table of all statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.conformance.statements import VERSIONS, Statement

PASSED: Final = "passed"

Proofs = Mapping[str, Mapping[str, str]]
"""Statement number to test (``tests/FILE.py::NAME``) to its outcome."""

INTRODUCTION: Final = """\
# Conformance

The suite has a test for each normative statement of MQTT 5.0 and 3.1.1 that binds a broker, by its
number in Appendix B of the specification. Tests name what they prove:
`@pytest.mark.mqtt5("3.1.0-1")`, `@pytest.mark.mqtt311("3.1.0-1")`. A statement is proven where all
of its tests pass. It is not applicable where it binds clients alone, or a feature that the broker
does not have.

A run of these tests writes this page; continuous integration fails where it differs.
`pytest -m "mqtt5 or mqtt311" --conformance-table FILE` also writes each statement, in our own
words, with its tests. The Eclipse Paho suite (`tests/system/interop`) is a second reading of the
specification.
"""

_PACKETS: Final = {
    "3.1": "CONNECT",
    "3.2": "CONNACK",
    "3.3": "PUBLISH",
    "3.4": "PUBACK",
    "3.5": "PUBREC",
    "3.6": "PUBREL",
    "3.7": "PUBCOMP",
    "3.8": "SUBSCRIBE",
    "3.9": "SUBACK",
    "3.10": "UNSUBSCRIBE",
    "3.11": "UNSUBACK",
    "3.12": "PINGREQ",
    "3.14": "DISCONNECT",
    "3.15": "AUTH",
}

TITLES: Final = {
    "mqtt5": _PACKETS
    | {
        "1.5": "Data representation",
        "2.1": "Structure of an MQTT Control Packet",
        "2.2": "Variable Header",
        "4.1": "Session State",
        "4.2": "Network Connections",
        "4.3": "Quality of Service levels and protocol flows",
        "4.4": "Message delivery retry",
        "4.5": "Message receipt",
        "4.6": "Message ordering",
        "4.7": "Topic Names and Topic Filters",
        "4.8": "Subscriptions",
        "4.9": "Flow Control",
        "4.12": "Enhanced authentication",
        "4.13": "Handling errors",
        "6.0": "Using WebSocket as a network transport",
    },
    "mqtt311": _PACKETS
    | {
        "1.5": "Data representations",
        "2.2": "Fixed header",
        "2.3": "Variable header",
        "4.1": "Storing state",
        "4.3": "Quality of Service levels and protocol flows",
        "4.4": "Message delivery retry",
        "4.5": "Message receipt",
        "4.6": "Message ordering",
        "4.7": "Topic Names and Topic Filters",
        "4.8": "Handling errors",
        "6.0": "Using WebSocket as a network transport",
        "7.0": "Conformance targets",
        "7.1": "Conformance clauses",
    },
}
"""Titles of the specification's sections, by marker and number."""


def problems(
    marker: str, statements: Mapping[str, Statement], marked: Mapping[str, str]
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
    """Return the page: a row for each section, and what is not proven or does not apply.

    Args:
        proofs: by marker.
        statements: by marker.
    """
    counts = ["| Version | Statements | Proven | Not proven | Not applicable |"]
    counts.append("| --- | --- | --- | --- | --- |")
    for marker, name in VERSIONS.items():
        known = statements[marker]
        states = [_state(number, proofs[marker], statement) for number, statement in known.items()]
        columns = [len(states), *map(states.count, ("proven", "not proven", "not applicable"))]
        counts.append(f"| {name} | {' | '.join(map(str, columns))} |")
    exceptions = [
        f"| {name} | {number} | {statement.says} | {_proof(number, proofs[marker], statement)} |"
        for marker, name in VERSIONS.items()
        for number, statement in statements[marker].items()
        if _state(number, proofs[marker], statement) == "not proven"
    ]
    if exceptions:
        head = ["", "| Version | Statement | What it asks for | Why it is not proven |"]
        exceptions = [*head, "| --- | --- | --- | --- |", *exceptions]
    lines = [INTRODUCTION, *counts, "", *_sections(proofs, statements), *exceptions]
    return "\n".join([*lines, "", *not_applicable(statements), ""])


def not_applicable(statements: Mapping[str, Mapping[str, Statement]]) -> list[str]:
    """Return a table of the statements that do not apply: a row for each version and reason."""
    lines = ["| Version | Not applicable | Statements |", "| --- | --- | --- |"]
    for marker, name in VERSIONS.items():
        numbers: dict[str, list[str]] = {}
        for number, statement in statements[marker].items():
            if why := statement.not_applicable:
                why = "a client's duty" if statement.binds == "client" else why
                numbers.setdefault(why, []).append(number)
        lines += [f"| {name} | {why} | {', '.join(found)} |" for why, found in numbers.items()]
    return lines


def full_table(
    proofs: Mapping[str, Proofs], statements: Mapping[str, Mapping[str, Statement]]
) -> str:
    """Return a row for each statement, with its tests or the reason for having none.

    Args:
        proofs: by marker.
        statements: by marker.
    """
    lines = ["# Each statement of MQTT, and its tests"]
    for marker, name in VERSIONS.items():
        lines += ["", f"## {name}", "", "| Statement | Binds | What it asks for | Proven by |"]
        lines.append("| --- | --- | --- | --- |")
        for number, statement in statements[marker].items():
            proof = _proof(number, proofs[marker], statement)
            lines.append(f"| {number} | {statement.binds} | {statement.says} | {proof} |")
    return "\n".join([*lines, ""])


def _state(number: str, proofs: Proofs, statement: Statement) -> str:
    if statement.not_applicable:
        return "not applicable"
    outcomes = proofs.get(number)
    return "proven" if outcomes and set(outcomes.values()) == {PASSED} else "not proven"


def _sections(
    proofs: Mapping[str, Proofs], statements: Mapping[str, Mapping[str, Statement]]
) -> list[str]:
    """Return a table of the sections, such as 3.1, with what each version has there."""
    cells: dict[str, dict[str, str]] = {}
    for marker in VERSIONS:
        sections: dict[str, list[str]] = {}
        for number in statements[marker]:
            section = ".".join(number.partition("-")[0].split(".")[:2])
            title = f"{section} {TITLES[marker].get(section, '')}".rstrip()
            sections.setdefault(title, []).append(number)
        for title, numbers in sections.items():
            known, proven = statements[marker], proofs[marker]
            states = [_state(number, proven, known[number]) for number in numbers]
            tests = {test for number in numbers for test in proven.get(number, ())}
            shown = f"{states.count('proven')}/{len(numbers)} ({len(tests)})"
            cells.setdefault(title, {})[marker] = shown
    rows = [f"| Section: proven/statements (tests) | {' | '.join(VERSIONS.values())} |"]
    rows.append("| --- | --- | --- |")
    order = sorted(cells, key=lambda title: tuple(map(int, title.split()[0].split("."))))
    return rows + [
        f"| {title} | {' | '.join(cells[title].get(marker, '') for marker in VERSIONS)} |"
        for title in order
    ]


def _proof(number: str, proofs: Proofs, statement: Statement) -> str:
    if statement.not_applicable:
        return f"not applicable: {statement.not_applicable}"
    tests = sorted(proofs.get(number, {}).items())
    shown = (f"`{test}`" if end == PASSED else f"**{end}**: `{test}`" for test, end in tests)
    return ", ".join(shown) or "**no test**"
