"""Command lines whose errors are plain text and name the option and what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

_ALLOWED: Final = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "float_parsing": "a number",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}
"""What is allowed, by the type of an error of pydantic, with which typer reads numbers."""


class PlainCommand(TyperCommand):
    """A command whose errors name the option, what was read and what is allowed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; typer's own error for a number does not say what was read."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                wrong = error.__cause__.errors()[0]
                allowed = _ALLOWED.get(wrong["type"])
                if allowed is not None:
                    limit = allowed.format(**wrong.get("ctx", {}))
                    error.message = f"read {wrong['input']!r}; allowed: {limit}"
            raise


class CommandLine(typer.Typer):
    """The command line of one program; completion is the ``penstock`` command's."""

    def __init__(self) -> None:
        """Make a command line without commands."""
        super().__init__(
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a `PlainCommand`; the arguments are typer's."""
        return super().command(*args, **{"cls": PlainCommand, **options})

    def status(self, argv: list[str] | None, prog_name: str, obj: object = None) -> int:
        """Run the command that the arguments name, and return the exit status.

        Args:
            argv: arguments after the program's name; None for those of the process.
            prog_name: the program's name, as usage and errors show it.
            obj: the object of the command's context.
        """
        try:
            self(args=argv, prog_name=prog_name, obj=obj)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        return 0
