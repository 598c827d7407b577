"""Names for running programs, here and on other machines, that commands take by ``--context``.

The file ``~/.config/penstock/contexts.yaml`` has them::

    site-7:
      url: https://site-7.example:8081
      token_file: site-7.token
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.checked_yaml import read_mapping, show, suggest, validate_config
from penstock.broker.config.key_types import STRICT
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError

CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"


class ContextError(PenstockError):
    """There is no such context, or it does not fit the other options; status 2."""


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class Context:
    """Where a console is, and what it needs; a name in the file of contexts stands for it.

    Attributes:
        token_file: the file with the token, from the directory of the file of contexts; None for
            none.
        ca_file: the certificate authority of an ``https`` console, likewise; None for those of the
            system.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Where an API is, and how its answer is printed; the fields are options of each command.

    Attributes:
        url: the URL; None for that of the context, or for this machine.
        token_file: the file with the token; None for that of the context, or for no token.
        ca_file: the certificate authority, likewise.
        context: the name of a context; None for that of the environment, unless `url` is given.
        as_json: the answer is printed as JSON.
    """

    url: Annotated[
        str | None,
        typer.Option(help="Address of the program, http://HOST:PORT; this machine's by default."),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a token, if the program needs one."),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the authority of an https program."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name in ~/.config/penstock/contexts.yaml; $PENSTOCK_CONTEXT by default.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False

    def over(self, context: Context) -> Context:
        """Return a context with what these options give in its place."""
        given = {"url": self.url, "token_file": self.token_file, "ca_file": self.ca_file}
        return replace(context, **{key: str(one) for key, one in given.items() if one is not None})


def contexts_file() -> Path:
    """Return where the file of contexts is."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "penstock" / "contexts.yaml"


def read_context(name: str) -> Context:
    """Return a context of the file.

    Raises:
        PenstockError: there is no such file or context, or it has a mistake.
    """
    file = contexts_file()
    found = read_mapping(file)
    if name not in found:
        known = ", ".join(map(str, found)) or "none, as the file is empty"
        hint = suggest(name, map(str, found))
        raise ContextError(f"--context: read {name!r}; allowed by {file}: {known}{hint}")
    if not isinstance(found[name], dict):
        problem = ConfigProblem(name, show(found[name]), "url, token_file and ca_file below it")
        raise ConfigError(str(file), [problem])
    context = validate_config(Context, found[name], str(file), name)
    files = {
        key: str(file.parent / Path(path).expanduser())
        for key in ("token_file", "ca_file")
        if (path := getattr(context, key)) is not None
    }
    return replace(context, **files)


def chosen_context(name: str | None, url: str | None) -> Context | None:
    """Return the context that a command has been told to use; None for none.

    Raises:
        PenstockError: there are both, or see `read_context`.
    """
    if name is not None and url is not None:
        raise ContextError("--url: read --url and --context; allowed: one of them")
    if name is None and url is None:
        name = os.environ.get(CONTEXT_VARIABLE)
    return read_context(name) if name else None
