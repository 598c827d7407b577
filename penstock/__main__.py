"""The ``penstock`` command.

Nothing is imported here that takes long: until `main` runs, Ctrl-C shows a traceback of Python's.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all the others
if TYPE_CHECKING:
    from typing import Final

INTERRUPTED: Final = 130
"""Exit status of a program that Ctrl-C has ended, as shells give it."""


def open_standard_files() -> None:
    """Let what is closed of standard input, output and error be /dev/null, as after ``<&-``.

    Else the next file or socket that is opened becomes it, and programs read and write there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - open to the end
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


def main(argv: list[str] | None = None) -> int:
    """Run the named program.

    Args:
        argv: arguments after the command's own name; None for those of the process.

    Returns:
        The program's exit status; 2 where no such program is named, or its extra is missing; 130
        where Ctrl-C has ended it.
    """
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        # Imports take long, and a KeyboardInterrupt would show where in them it came.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        open_standard_files()
        from penstock.programs import run  # noqa: PLC0415 (slow to load)

        return run(argv, on_interrupt)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, on_interrupt)


if __name__ == "__main__":
    sys.exit(main())
