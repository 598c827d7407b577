"""The ``penstock`` command: a table of program names to modules, imported on use."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Final

PROGRAMS: Final[dict[str, tuple[str, str]]] = {
    "broker": ("broker.__main__", "run the MQTT broker with a policy file"),
    "proxy": ("edge_proxy.__main__", "run the edge proxy in front of any broker"),
    "queue": ("plugins.queue.gateway", "run the queue's HTTP gateway alone"),
    "why": ("plugins.console.why", "say why a client's last large message was held or sent"),
    "passwd": ("plugins.access.passwd", "write users' passwords into a password file"),
    "import-mosquitto": (
        "broker.import_mosquitto.__main__",
        "write a policy file from a mosquitto.conf",
    ),
    "spark": ("spark_bridge.__main__", "stream a queue into Parquet with Spark"),
    "plan": ("models.__main__", "simulate what a policy would do (the papers' models)"),
    "netem": ("netem.__main__", "hold a network with delay and loss on this machine (root)"),
    "bench": ("benchmarks.__main__", "measure Penstock beside its peers (from a checkout)"),
}
"""Name of the program to the module that holds its ``main(argv) -> int``, and what it does."""


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
            file = Path(os.devnull).open(mode)  # noqa: SIM115 - open to the end
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


def main(argv: list[str] | None = None) -> int:
    """Run the named program.

    Args:
        argv: arguments after the command's own name; None for those of the process.

    Returns:
        The program's exit status; 2 where no such program is named.
    """
    open_standard_files()
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"penstock {importlib.metadata.version('penstock')}")
        return 0
    name, *rest = arguments
    if name not in PROGRAMS:
        print(f"penstock: no program {name!r}\n{usage()}", file=sys.stderr)
        return 2
    if name == "bench":
        # The benchmarks are part of a checkout and never installed.
        checkout = Path(__file__).resolve().parent
        if not (checkout / "benchmarks").is_dir():
            print("penstock: bench runs from a checkout of the repository", file=sys.stderr)
            return 2
        sys.path.insert(0, str(checkout))
    program = importlib.import_module(PROGRAMS[name][0])
    status: int = program.main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
