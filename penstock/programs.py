"""The programs of the ``penstock`` command: a group of commands, each loaded when it is named.

A program keeps its own command line, so that ``python -m penstock.broker`` is the same program.
The group knows a name and a line of each, for help, for "did you mean" and for completion.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Program(NamedTuple):
    """A program of the command.

    Attributes:
        module: holds its command line as ``app``, and ``main(argv) -> int``, which runs it.
        about: what it does, in some words.
        extra: of the distribution, which it needs for all it does or for a part; "" for none.
        app: the name of its command line in a module of several; what runs it is ``APP_main``.
    """

    module: str
    about: str
    extra: str = ""
    app: str = "app"


_COMMANDS: Final = "penstock.plugins.console.commands"

PROGRAMS: Final = {
    "broker": Program("penstock.broker.__main__", "run the MQTT broker with a policy file"),
    "proxy": Program(
        "penstock.edge_proxy.__main__", "run the edge proxy, in front of any broker or at a site"
    ),
    "queue": Program(
        "penstock.plugins.queue.__main__",
        "inspect and change queues, or serve them alone",
    ),
    "cluster": Program(
        "penstock.plugins.cluster.__main__",
        "show the nodes of a cluster, drain one, forget one that is gone",
        "redis",
    ),
    "why": Program(
        f"{_COMMANDS}.why",
        "show why a client's last large message was held or sent",
    ),
    "init": Program(
        "penstock.plugins.access.first_policy",
        "write a first policy file, with a user and a password of its own",
    ),
    "reload": Program(f"{_COMMANDS}.reload", "have a running broker read its files again"),
    "top": Program(
        f"{_COMMANDS}.top",
        "watch a running broker, and the clients with the worst links",
        app="top",
    ),
    "client": Program(
        f"{_COMMANDS}.clients", "list, show, disconnect, ban, follow clients", app="client"
    ),
    "topic": Program(f"{_COMMANDS}.messages", "list the topics that fill the queues", app="topic"),
    "subscription": Program(
        f"{_COMMANDS}.messages", "list subscriptions: who gets what", app="subscription"
    ),
    "retained": Program(
        f"{_COMMANDS}.messages", "list, show and clear retained messages", app="retained"
    ),
    "uplink": Program(
        f"{_COMMANDS}.running", "show the connections to other brokers", app="uplink"
    ),
    "log": Program(f"{_COMMANDS}.running", "change how much a program logs", app="log"),
    "backup": Program(
        f"{_COMMANDS}.running", "copy all that is durable, while the broker goes on", app="backup"
    ),
    "restore": Program(
        "penstock.broker.check", "put a backup in its place, while no broker runs", app="restore"
    ),
    "drain": Program(
        f"{_COMMANDS}.running", "have all clients leave a broker, before a stop", app="drain"
    ),
    "pub": Program("penstock.lanes.commands", "publish messages", "lanes", app="pub"),
    "sub": Program(
        "penstock.lanes.commands", "show messages, with their latency and size", "lanes", app="sub"
    ),
    "check": Program(
        "penstock.broker.check",
        "say what a start with a policy file would find, and change nothing",
    ),
    "passwd": Program(
        "penstock.plugins.access.passwd", "write users' passwords into a password file"
    ),
    "import-mosquitto": Program(
        "penstock.broker.import_mosquitto.__main__", "write a policy file from a mosquitto.conf"
    ),
    "spark": Program(
        "penstock.spark_bridge.__main__", "run pipelines from queues to tables with Spark", "spark"
    ),
    "plan": Program(
        "penstock.models.__main__",
        "predict what a fleet needs; from a checkout, run the papers' evaluations",
        "models",
    ),
    "record": Program(
        "penstock.models.recording.__main__",
        "record RTTs and message sizes of a running broker, for plan",
        "models",
    ),
    "netem": Program(
        "penstock.netem.__main__",
        "emulate bad networks, and run experiments on them (root)",
        "netem",
    ),
    "bench": Program(
        "benchmarks.__main__", "measure Penstock and other brokers (from a checkout)", "bench"
    ),
}
"""Name to program, in the order of the help."""

FIRST: Final = ("init", "broker", "check", "reload", "why")
"""The programs that people need; the help has them apart, in this order."""

RUNNING: Final = (
    *("top", "client", "topic", "subscription", "retained", "uplink", "queue", "cluster"),
    *("log", "backup", "drain", "pub", "sub"),
)
"""The programs that look at a running broker; the help has them behind those."""

OURS: Final = frozenset(program.module.partition(".")[0] for program in PROGRAMS.values())
"""Packages of Penstock: one of theirs that is missing belongs to no extra."""


class LazyCommand(TyperCommand):
    """A program's place in the group; the program reads its arguments itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Leave all arguments to the program, `--help` included."""
        ctx.args = list(args)
        return ctx.args

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Return the context of a run; for completion that of the program's own command line."""
        if extra.get("resilient_parsing"):
            with contextlib.suppress(ModuleNotFoundError):  # its extra is not installed
                name = str(info_name)
                command: Any = get_command(getattr(load(name), PROGRAMS[name].app))
                return command.make_context(info_name, args, *rest, **extra)
        return super().make_context(info_name, args, *rest, **extra)


class Group(TyperGroup):
    """The group of all programs; those that people need come first."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write a line for each program, in three sections."""
        others = [name for name in PROGRAMS if name not in (*FIRST, *RUNNING)]
        sections = (
            ("Commands", FIRST),
            ("A running broker, here or elsewhere", RUNNING),
            ("More commands", others),
        )
        for title, names in sections:
            with formatter.section(title):
                formatter.write_dl([(name, PROGRAMS[name].about) for name in names])


def load(name: str) -> Any:
    """Return the module of a program.

    Raises:
        ModuleNotFoundError: a module that it needs is not installed.
    """
    if name == "bench":
        # The benchmarks are part of a checkout and never installed.
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    return importlib.import_module(PROGRAMS[name].module)


def start(context: typer.Context) -> None:
    """Run a program; its arguments and the handler of SIGINT that it finds are the context's."""
    name = str(context.info_name)
    try:
        module, app = load(name), PROGRAMS[name].app
        signal.signal(signal.SIGINT, context.obj)
        status: int = getattr(module, "main" if app == "app" else f"{app}_main")(context.args)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "benchmarks":
            told = "runs from a checkout of the repository"
        elif PROGRAMS[name].extra and missing not in OURS:
            told = (
                f"needs the module {missing}: pip install 'penstock-mqtt[{PROGRAMS[name].extra}]'"
            )
        else:
            raise
        typer.echo(f"penstock {name}: {told}", err=True)
        status = 2
    raise typer.Exit(status)


def show_version(*, is_asked: bool) -> None:
    """Print the version and end, where `--version` asks for it."""
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415 (slow to load)

        typer.echo(f"penstock {version('penstock-mqtt')}")
        raise typer.Exit


def penstock(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """An MQTT broker that protects small messages and memory on bad networks, and feeds Spark."""
    if context.invoked_subcommand is None:
        lines = [f"  penstock {name:<8}{PROGRAMS[name].about}" for name in FIRST]
        lines += ["", "More commands: penstock --help"]
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(2)


def new_group() -> typer.Typer:
    """Return the command line of ``penstock``."""
    group = typer.Typer(
        cls=Group,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    group.callback()(penstock)
    for name, program in PROGRAMS.items():
        group.command(name, cls=LazyCommand, help=program.about)(start)
    return group


def run(arguments: list[str] | None, on_interrupt: Any) -> int:
    """Run the program that is named.

    Args:
        arguments: after the command's own name; None for those of the process.
        on_interrupt: the handler of SIGINT that the program finds.

    Returns:
        As `penstock.__main__.main`.
    """
    try:
        new_group()(args=arguments, prog_name="penstock", obj=on_interrupt)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0
