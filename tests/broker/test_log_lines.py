from __future__ import annotations

import logging

import pytest

from broker.log_lines import MAX_CHARACTERS, LineFormatter


def shown(*arguments: object, fault: BaseException | None = None) -> str:
    """Return what the formatter makes of a record that names a client."""
    fault_information = None if fault is None else (type(fault), fault, fault.__traceback__)
    record = logging.LogRecord(
        "penstock", logging.INFO, "x.py", 1, "client %s: gone", arguments, fault_information
    )
    return LineFormatter("%(levelname)s: %(message)s").format(record)


@pytest.mark.parametrize("end_of_line", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_no_client_writes_a_line_of_its_own(end_of_line: str) -> None:
    """A client id may hold any character but U+0000; the log has one line for it."""
    assert len(shown(f"a{end_of_line}INFO: client b").splitlines()) == 1


def test_no_client_works_the_terminal() -> None:
    """Escape sequences and turned directions are shown and not obeyed."""
    assert shown("a\x1b[2J\x9b\u202eb") == r"INFO: client a\x1b[2J\x9b\u202eb: gone"


def test_other_characters_stay() -> None:
    """Names of every language are written as they are."""
    assert shown("Zoë 水位 \\n") == "INFO: client Zoë 水位 \\n: gone"


def test_no_client_fills_the_log_with_a_line() -> None:
    """A long name loses its middle, and what is said of the client stays."""
    line = shown("a" * 65_535)
    assert len(line) < MAX_CHARACTERS + 10
    assert line.startswith("INFO: client aaa")
    assert line.endswith("aaa: gone")


def test_a_traceback_keeps_its_lines() -> None:
    """Only the message is from outside; a fault of ours stays readable."""
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    first, *rest = shown("a", fault=caught.value).splitlines()
    assert first == "INFO: client a: gone"
    assert rest[0].startswith("Traceback")
    assert len(rest) > 1
