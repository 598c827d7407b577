"""The output of the commands of ``penstock plan``: tables, a file for pages, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

NEEDS_PAHO: Final = "needs paho-mqtt: pip install 'penstock-mqtt[netem]'"

Figures: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the tables there too, as JSON, for pages.")
]

Topics: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Topic filter of the messages; may be repeated; # without it."),
]


class Output:
    """The destinations of a run's tables and of its picture.

    It is created before a simulation of several minutes begins, so that a file that cannot be
    written is reported at once.

    Raises:
        typer.BadParameter: one of the files cannot be written.
    """

    def __init__(
        self, context: typer.Context, figures: Path | None, plot: Path | None = None
    ) -> None:
        self._origin = begin(context.obj)
        self._figures = figures
        self._plot = plot
        if figures is not None:
            write(check_writable, figures, "--figures")
        if plot is not None:
            write(check_picture, plot, "--plot")

    def tell(
        self,
        heading: str,
        tables: Mapping[str, Table],
        draw_into: Callable[[Path], None] | None = None,
        doubts: Sequence[str] = (),
    ) -> None:
        """Print the tables, and write the files."""
        typer.echo("\n\n".join([heading, *map(str, tables.values())]))
        if self._figures is not None:
            origin = replace(self._origin, doubts=doubts)
            fill = partial(write_figure_file, origin=origin, tables=tables)
            write(fill, self._figures, "--figures")
        if self._plot is not None and draw_into is not None:
            write(draw_into, self._plot, "--plot")


def check_all(files: Mapping[str, Path | None]) -> None:
    """Check that files can be written, by the options that name them.

    Raises:
        typer.BadParameter: one cannot.
    """
    for option, file in files.items():
        if file is not None:
            write(check_writable, file, option)


def check_picture(file: Path) -> None:
    """Check that a picture can be written to a file, without writing it.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: its suffix is no picture format.
    """
    check_writable(file)
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 (the extra `models`)

    suffix, known = file.suffix.removeprefix("."), FigureCanvasBase.get_supported_filetypes()
    if suffix and suffix.lower() not in known:
        raise ValueError(f"no form of picture; allowed: {', '.join(sorted(known))}")


def write(draw_into: Callable[[Path], None], file: Path, option: str) -> None:
    """Write a file that an option names.

    Raises:
        typer.BadParameter: the file cannot be written, or matplotlib is not installed.
    """
    try:
        draw_into(file)
    except ImportError:
        message = "needs matplotlib: pip install 'penstock-mqtt[models]'"
        raise typer.BadParameter(message, param_hint=option) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=option) from None
