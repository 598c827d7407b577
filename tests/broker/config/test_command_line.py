"""Command lines: an error names the option, what was read and what is allowed."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.programs import PROGRAMS, load


def _status(arguments: list[str]) -> int:
    app = CommandLine()

    @app.command()
    def command(
        repeats: Annotated[int, typer.Option(min=1, max=9)] = 1,
        seconds: Annotated[float, typer.Option(min=0.5)] = 1.0,
        seed: int = 0,
    ) -> None:
        typer.echo(f"{repeats} {seconds} {seed}")

    return exit_status(app, "penstock test", arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--repeats", "ten"], "'--repeats': read 'ten'; allowed: a whole number"),
        (["--repeats", "1.5"], "'--repeats': read '1.5'; allowed: a whole number"),
        (["--repeats", "0"], "'--repeats': read '0'; allowed: 1 or more"),
        (["--repeats", "10"], "'--repeats': read '10'; allowed: 9 or less"),
        (["--seconds", "soon"], "'--seconds': read 'soon'; allowed: a number"),
        (["--seconds", "nan"], "'--seconds': read 'nan'; allowed: 0.5 or more"),
        (["--seed", "9" * 5000], "'; allowed: a whole number of fewer digits"),
    ],
)
def test_a_number_that_cannot_be_used_is_named_with_what_is_allowed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """With status 2, as for every mistake in the arguments."""
    assert _status(arguments) == 2
    assert expected in capsys.readouterr().err


def test_numbers_within_their_limits_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """The command gets them as numbers."""
    assert _status(["--repeats", "9", "--seconds", "0.5", "--seed", "-3"]) == 0
    assert capsys.readouterr().out == "9 0.5 -3\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_such_a_command_line(name: str) -> None:
    """So that a mistake is told in the same way by all."""
    assert isinstance(getattr(load(name), PROGRAMS[name].app), CommandLine)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_shows_its_help_with_the_short_option_too(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As the command itself does, and as usage errors tell."""
    assert exit_status(getattr(load(name), PROGRAMS[name].app), f"penstock {name}", ["-h"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: penstock {name}")
    assert "-h, --help" in shown
