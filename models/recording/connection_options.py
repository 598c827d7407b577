"""Options of the commands that connect to a running broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Username: TypeAlias = Annotated[
    str | None, typer.Option(help="User; the password is that of PENSTOCK_PASSWORD or of a file.")
]
PasswordFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the user's password.")
]
CaFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Authorities of the broker's certificate.")
]
CertFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The client's certificate.")
]
KeyFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its key, if that is in another file.")
]
Topics: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Topic filter of the messages; may be repeated; # without it."),
]
