"""Command lines whose errors are plain text and name the option and what was read."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from penstock.broker.errors import PenstockError

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

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
        """Read the arguments; typer does not say which number was read, nor what is missing."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                wrong = error.__cause__.errors()[0]
                allowed = _ALLOWED.get(wrong["type"])
                if allowed is not None:
                    limit = allowed.format(**wrong.get("ctx", {}))
                    error.message = f"read {wrong['input']!r}; allowed: {limit}"
            elif not error.message:
                error.message = getattr(error.param, "help", None) or ""
            raise


class CommandLine(typer.Typer):
    """The command line of one program; completion is the ``penstock`` command's."""

    def __init__(self) -> None:
        """Make a command line without commands."""
        super().__init__(
            add_completion=False,
            no_args_is_help=True,
            context_settings={"help_option_names": ["-h", "--help"]},
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a `PlainCommand`; the arguments are typer's."""
        return super().command(*args, **{"cls": PlainCommand, **options})

    def status(self, argv: list[str] | None, prog_name: str, obj: object = None) -> int:
        """Run the command that the arguments name, and return the exit status."""
        try:
            self(args=argv, prog_name=prog_name, obj=obj)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        return 0


def with_options(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a dataclass.

    Args:
        kind: its fields are annotated as options are. An instance is the command's first argument.
    """
    options = list(inspect.signature(kind, eval_str=True).parameters.values())

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**arguments: Any) -> None:
            given = kind(**{option.name: arguments.pop(option.name) for option in options})
            command(given, **arguments)

        positional = [one for one in own if one.kind is not one.KEYWORD_ONLY]
        flags = [one for one in own if one.kind is one.KEYWORD_ONLY]
        parameters = [*positional, *options, *flags]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


class NoTerminalError(PenstockError):
    """There is nobody to ask; status 2."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask whether to go on; `yes` is the answer that is given already.

    Raises:
        NoTerminalError: standard input is no terminal.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise NoTerminalError("standard input: read no terminal to ask on; allowed: --yes")
    typer.confirm(question, abort=True)


def exit_status(app: CommandLine, prog_name: str, argv: list[str] | None = None) -> int:
    """Run a program and return its exit status.

    Returns:
        0 where the program has done its work or was stopped by a signal; 2 for a mistake in its
        arguments or files, which is reported in one line each; or what a command itself returns, or
        the error says.
    """
    try:
        return app.status(argv, prog_name)
    except PenstockError as error:
        sys.stderr.write(f"{prog_name}: {error}\n")
        return error.exit_status


def url_parts(url: str) -> tuple[str, str, int | None, str]:
    """Return (scheme, host, port, path) of a URL; an empty scheme and host where it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", None, ""
    return parts.scheme, parts.hostname or "", port, parts.path
