from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from penstock.broker.config.log_options import LogOptions
from penstock.broker.process.log_lines import (
    MAX_CHARACTERS,
    MAX_LINES,
    WINDOW_SECONDS,
    BoundedHandler,
    JsonFormatter,
    KeyValueFormatter,
    LineFormatter,
    take_options,
)


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


class Log:
    """A bounded log whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1e9
        self._stream = io.StringIO()
        self.handler = BoundedHandler(self._stream)
        self.handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))

    def write(
        self,
        n_lines: int,
        words: str = "%s: closed",
        level: int = logging.INFO,
        *,
        is_unlimited: bool = False,
    ) -> None:
        """Write lines that differ in their numbers alone."""
        for number in range(n_lines):
            record = logging.LogRecord("penstock", level, "x.py", 1, words, (number,), None)
            record.created = self.now
            record.is_unlimited = is_unlimited
            self.handler.handle(record)

    def lines(self) -> list[str]:
        """Take what was written since the last call."""
        lines = self._stream.getvalue().splitlines()
        self._stream.seek(0)
        self._stream.truncate()
        return lines


@pytest.mark.parametrize("seconds", [WINDOW_SECONDS, -3_600.0])
def test_no_number_of_connections_fills_the_log(seconds: float) -> None:
    """Some lines in the same words are written, and the others counted; other words stay."""
    log = Log()
    log.write(MAX_LINES + 50)
    log.write(1, "%s: something else")
    assert log.lines() == [
        *(f"INFO {number}: closed" for number in range(MAX_LINES)),
        "INFO 0: something else",
    ]
    log.now += seconds
    log.write(2)
    assert log.lines() == [
        "WARNING 50 more lines like this one were left out: %s: closed",
        "INFO 0: closed",
        "INFO 1: closed",
    ]


def test_lines_of_operators_are_written_among_those_of_strangers() -> None:
    """A thousand wrong logins must not hide what was done meanwhile."""
    log = Log()
    log.write(MAX_LINES + 1)
    log.write(2, is_unlimited=True)
    assert log.lines()[MAX_LINES:] == ["INFO 0: closed", "INFO 1: closed"]


def test_what_was_left_out_is_told_at_the_end() -> None:
    """A flood that lasts until the process ends is not forgotten."""
    log = Log()
    log.write(MAX_LINES + 1)
    log.lines()
    log.handler.close()
    assert log.lines() == ["WARNING 1 more lines like this one were left out: %s: closed"]


def test_all_debug_lines_are_written() -> None:
    """Who asks for them wants each."""
    log = Log()
    log.write(2 * MAX_LINES, level=logging.DEBUG)
    assert len(log.lines()) == 2 * MAX_LINES


def structured(form: logging.Formatter, *arguments: object, fault: Any = None) -> str:
    """Return the line of a record in a form with fields."""
    record = logging.LogRecord(
        "penstock", logging.INFO, "x.py", 1, "client %s: refused: %s", arguments, fault
    )
    record.created = 0.5
    return form.format(record)


def test_json_is_one_object_on_a_line_with_the_traceback_in_it() -> None:
    """Nothing that a client has sent ends the line or is taken for another field."""
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    fault = (caught.type, caught.value, caught.tb)
    line = structured(JsonFormatter(), 'a"\n\u2028', "x" * 5_000, fault=fault)
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert list(found)[:5] == ["time", "level", "event", "client_id", "reason"]
    assert found["time"] == "1970-01-01T00:00:00.500Z"
    assert (found["level"], found["event"]) == ("info", "refused")
    assert found["client_id"] == 'a"\n\u2028'
    assert found["traceback"].splitlines()[-1].startswith("ZeroDivisionError")
    assert len(found["reason"]) < len(found["message"]) < MAX_CHARACTERS + 10


def test_key_and_value_are_quoted_where_they_have_to_be() -> None:
    """As logfmt has it."""
    assert structured(KeyValueFormatter(), "a", "b=c\x1b") == (
        "time=1970-01-01T00:00:00.500Z level=info event=refused client_id=a "
        'reason="b=c\\u001b" logger=penstock message="client a: refused: b=c\\u001b"'
    )


def test_the_number_left_out_is_a_field() -> None:
    """So that a search finds floods."""
    log = Log()
    log.handler.setFormatter(JsonFormatter())
    log.write(MAX_LINES + 7)
    log.lines()
    log.handler.close()
    found = json.loads(log.lines()[0])
    assert (found["event"], found["left_out"]) == ("more_lines_like_this_one_were", 7)


def test_the_form_changes_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has changed is taken."""
    log = Log()
    monkeypatch.setattr(logging.getLogger(), "handlers", [log.handler])
    take_options(LogOptions(format="json"), [("log", "format")])
    log.write(1)
    take_options(LogOptions(format="keyvalue"), [("limits", "sessions")])
    log.write(1)
    assert [json.loads(line)["event"] for line in log.lines()] == ["closed", "closed"]
