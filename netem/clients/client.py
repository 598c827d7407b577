"""The program of some hosts' clients: ``python -m penstock.netem.clients.client PLAN``.

Each client is forked from this process, which has already loaded the modules, and enters the
namespace of its host: a hundred clients start in a second and share the memory. Lines on standard
output tell the runner about a client: ``ready``, ``published``, ``assured``, ``complete``, and
``ended ID STATUS`` when its process has ended. ``begin SECONDS`` on standard input gives the start
of the traffic. The end of standard input ends all clients.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.netem.clients import publisher, subscriber
from penstock.netem.clients.client_plan import PublisherPlan, SubscriberPlan, read_crews
from penstock.netem.clients.connection import say
from penstock.netem.links.namespaces import enter

LOOK_SECONDS: Final = 0.2
"""The period at which ended clients are looked for."""


class _Client:
    """A client's process.

    Attributes:
        client_id: the client's name.
        pid: the process id of its process.
        orders: the file descriptor of its standard input.
    """

    def __init__(self, namespace: str, plan: PublisherPlan | SubscriberPlan) -> None:
        self.client_id = plan.client_id
        reading, self.orders = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.orders)
            _be(namespace, plan, reading)
        os.close(reading)


def _be(namespace: str, plan: PublisherPlan | SubscriberPlan, orders: int) -> None:
    """Run a client in this process; never return."""
    status = 1
    try:
        log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
        enter(namespace)
        if isinstance(plan, PublisherPlan):
            publisher.run(plan, _awaiting(orders))
        else:
            subscriber.run(plan)
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may pass into the parent's frames
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _awaiting(orders: int) -> Callable[[], float]:
    def await_begin() -> float:
        with open(orders, closefd=False) as lines:
            return float(lines.readline())

    return await_begin


def main(argv: list[str]) -> int:
    """Start the clients of a plan and keep them until standard input ends."""
    crews = read_crews(Path(argv[0]))
    # Ctrl-C reaches every process of the terminal; the runner alone decides when clients end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The collector would write to pages that clients share.
    gc.freeze()
    every = [(namespace, each) for namespace, crew in crews.items() for each in crew.clients()]
    clients = {each.pid: each for each in itertools.starmap(_Client, every)}
    try:
        while True:
            if select.select([0], [], [], LOOK_SECONDS)[0]:
                words = os.read(0, 4_096).decode().split()
                if not words:
                    return 0
                for each in clients.values():
                    with contextlib.suppress(BrokenPipeError):  # its end is reported below
                        os.write(each.orders, f"{words[-1]}\n".encode())
            _tell_who_has_ended(clients)
    finally:
        for pid in clients:
            os.kill(pid, signal.SIGKILL)


def _tell_who_has_ended(clients: dict[int, _Client]) -> None:
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        say("ended", clients.pop(pid).client_id, str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
