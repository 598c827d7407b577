"""The ``penstock`` command: a table of program names to modules, imported on use.

Nothing is imported here that takes long: until `main` runs, Ctrl-C shows a traceback of Python's.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all the others
if TYPE_CHECKING:
    from typing import Any, Final

PROGRAMS: Final[dict[str, tuple[str, str]]] = {
    "broker": ("penstock.broker.__main__", "run the MQTT broker with a policy file"),
    "proxy": ("penstock.edge_proxy.__main__", "run the edge proxy in front of any broker"),
    "queue": ("penstock.plugins.queue.gateway", "run the queue's HTTP gateway alone"),
    "why": (
        "penstock.plugins.console.why",
        "say why a client's last large message was held or sent",
    ),
    "passwd": ("penstock.plugins.access.passwd", "write users' passwords into a password file"),
    "import-mosquitto": (
        "penstock.broker.import_mosquitto.__main__",
        "write a policy file from a mosquitto.conf",
    ),
    "spark": ("penstock.spark_bridge.__main__", "stream a queue into Parquet with Spark"),
    "plan": ("penstock.models.__main__", "simulate what a policy would do (the papers' models)"),
    "netem": (
        "penstock.netem.__main__",
        "hold a network with delay and loss on this machine (root)",
    ),
    "bench": ("benchmarks.__main__", "measure Penstock beside its peers (from a checkout)"),
}
"""Name of the program to the module that holds its ``main(argv) -> int``, and what it does."""

EXTRAS: Final = {"spark": "spark", "plan": "models", "netem": "netem", "bench": "bench"}
"""Name of a program to the extra that it needs, for all it does or for a part."""

OURS: Final = frozenset(module.partition(".")[0] for module, _ in PROGRAMS.values())
"""Packages of Penstock: one of theirs that is missing belongs to no extra."""

INTERRUPTED: Final = 130
"""Exit status of a program that Ctrl-C has ended, as shells give it."""


def usage() -> str:
    """Return the list of programs, a line each."""
    width = max(map(len, PROGRAMS))
    lines = [f"  {name:<{width}}  {about}" for name, (_, about) in PROGRAMS.items()]
    return (
        "usage: penstock PROGRAM [OPTIONS]\n       penstock --version\n\nprograms:\n"
        + "\n".join(lines)
    )


def open_standard_files() -> None:
    """Let what is closed of standard input, output and error be /dev/null, as after ``<&-``.

    Else the next file or socket that is opened becomes it, and programs read and write there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - open to the end
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


def checkout() -> str | None:
    """Return the folder of the repository, where the benchmarks are; None without a checkout."""
    from pathlib import Path  # noqa: PLC0415 (slow to load)

    folder = Path(__file__).resolve().parent.parent
    return str(folder) if (folder / "benchmarks").is_dir() else None


def run(arguments: list[str], on_interrupt: Any) -> int:
    """Run the named program.

    Args:
        arguments: after the command's own name.
        on_interrupt: what the program finds as its handler of SIGINT.

    Returns:
        As `main`.

    Raises:
        KeyboardInterrupt: the program was interrupted and does nothing about it.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version  # noqa: PLC0415 (slow to load)

        print(f"penstock {version('penstock')}")
        return 0
    name, *rest = arguments
    if name not in PROGRAMS:
        print(f"penstock: no program {name!r}\n{usage()}", file=sys.stderr)
        return 2
    if name == "bench":
        # The benchmarks are part of a checkout and never installed.
        folder = checkout()
        if folder is None:
            print("penstock: bench runs from a checkout of the repository", file=sys.stderr)
            return 2
        sys.path.insert(0, folder)
    module, _ = PROGRAMS[name]
    try:
        program = importlib.import_module(module)
        signal.signal(signal.SIGINT, on_interrupt)
        status: int = program.main(rest)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if name not in EXTRAS or missing in OURS:
            raise
        print(
            f"penstock {name}: needs the module {missing}: pip install 'penstock[{EXTRAS[name]}]'",
            file=sys.stderr,
        )
        return 2
    return status


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
        return run(sys.argv[1:] if argv is None else argv, on_interrupt)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, on_interrupt)


if __name__ == "__main__":
    sys.exit(main())
