"""What does each option cost a broker, for a message that goes one to one?

The rows `qos0_1to1` and `qos1_1to1` of `penstock bench`, with one option at a time: processor time
of the broker for each message. mosquitto stands beside where it has the option. A dash stands where
it has none.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import typer

from benchmarks.__main__ import ROWS
from benchmarks.peers import DEFAULT_OPTIONS, PEERS, Options, Peer, penstock_peer, running
from benchmarks.program import (
    DEFAULT_REPEATS,
    FiguresFile,
    Program,
    Quick,
    Repeats,
    doubts,
    running_command,
    tell,
)
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES
from benchmarks.rows.rates import BROKER_CPU
from benchmarks.rows.report import format_value
from benchmarks.rows.row import FULL, QUICK
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

MEASURED: Final = ("qos0_1to1", "qos1_1to1")
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Option:
    """An option: what is set in all brokers, or changed in Penstock's policy alone.

    Attributes:
        change: a function that changes the policy; None where mosquitto has the option too.
        stock: whether it is the policy that aMQTT ships instead of the example.
    """

    words: str
    options: Options = DEFAULT_OPTIONS
    change: Change | None = None
    stock: bool = False

    def peers(self) -> list[Peer]:
        """Return the brokers that have it: Penstock, and perhaps mosquitto."""
        if self.stock:
            return [PEERS["penstock-stock"]]
        if (change := self.change) is None:
            return [PEERS["penstock"], PEERS["mosquitto"]]
        return [penstock_peer("penstock", self.words, lambda policy, _: change(policy))]


def _plain(policy: dict[str, Any]) -> None:
    for plugin in "probing", "withholding", "queue":
        del policy["plugins"][plugin]
    del policy["persistence"]


def _limits(**limits: Any) -> Change:
    return lambda policy: policy["limits"].update(limits)


def _queue(policy: dict[str, Any]) -> None:
    policy["plugins"]["queue"]["queues"]["telemetry"]["topics"] = ["bench/#"]


OPTIONS: Final = (
    Option("`policy.example.yaml`"),
    Option("without `probing`, `withholding`, `queue` and `persistence`", change=_plain),
    Option("the policy file that aMQTT ships", stock=True),
    Option("users and an ACL file", Options(has_acl=True)),
    Option("durable sessions", Options(is_durable=True)),
    Option("users, an ACL file and durable sessions", Options(has_acl=True, is_durable=True)),
    Option("`publish_messages_per_second`", change=_limits(publish_messages_per_second=10_000_000)),
    Option("`payload_bytes`", change=_limits(payload_bytes=1_000_000)),
    Option("`maximum_packet_size`", change=_limits(maximum_packet_size=1_000_000)),
    Option(
        "`console`, for metrics",
        change=lambda policy: policy["plugins"].update(console={"http": "127.0.0.1:0"}),
    ),
    Option("`sys_interval: 1`", change=lambda policy: policy.update(sys_interval=1)),
    Option(
        "`memory` with `store: spill`",
        change=lambda policy: policy["plugins"].update(
            memory={"store": "spill", "memory_limit": "32 MB"}
        ),
    ),
    Option("a queue bound to the topics", change=_queue),
)


def option_costs(
    repeats: Repeats = DEFAULT_REPEATS, figures: FiguresFile = None, *, quick: Quick = False
) -> None:
    """Measure what each option costs: processor time of the broker for each message."""
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    scale = replace(QUICK, seconds=0.1) if quick else FULL
    told: dict[tuple[str, str, str], list[float]] = {}
    for number in range(repeats):
        for option in OPTIONS:
            options = replace(option.options, inflight_messages=INFLIGHT_MESSAGES)
            for peer in option.peers():
                with running(peer, options) as broker:
                    for name in MEASURED:
                        cpu = ROWS[name].measure(broker, scale).details[BROKER_CPU]
                        key = option.words, name, peer.name.partition("-")[0]
                        told.setdefault(key, []).append(cpu)
                        text = f"{option.words}: {name} {peer.name}: {cpu:.3g}"
                        typer.echo(f"{number + 1}/{repeats} {text}", err=True)
    columns = [(name, peer) for name in MEASURED for peer in ("penstock", "mosquitto")]
    table = Table(
        ["µs of processor time a message", *(f"`{name}`, {peer}" for name, peer in columns)],
        [
            [
                option.words,
                *(
                    format_value(statistics.median(values)) if values else "-"
                    for name, peer in columns
                    for values in [told.get((option.words, name, peer), [])]
                ),
            ]
            for option in OPTIONS
        ],
    )
    tell([str(table)], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, {"options": table})


main: Final = Program(option_costs, "python -m benchmarks.option_costs")


if __name__ == "__main__":
    sys.exit(main())
