"""``mosquitto -c FILE -p PORT`` as mosquitto's tests start it: Penstock behind a load balancer.

The environment says how many brokers there are (SUITE_NODES; more than one are a cluster on the
Redis server of SUITE_REDIS), and where their files are (SUITE_FOLDER). Brokers that are started
again find their sessions where mosquitto would.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.broker.errors import PenstockError
from penstock.broker.import_mosquitto.conf_file import read_conf
from penstock.broker.import_mosquitto.translate import translate
from tests.helpers.cluster import load_balancer
from tests.helpers.forks import forked_programs
from tests.helpers.process import BrokerProcess

REFUSED: Final = 3
"""mosquitto's exit status for a file that it cannot use."""


def policy_of(file: Path) -> dict[str, Any]:
    """Return what a file of mosquitto's means, with the files that it names by their whole paths.

    Raises:
        PenstockError: it cannot be used.
    """
    lines = (
        line._replace(value=str(Path(line.value).resolve()))
        if line.value and Path(line.value).is_file()
        else line
        for line in read_conf(file)
    )
    policy, notes, _ = translate(lines, socket.gethostname())
    for note in notes:
        sys.stderr.write(f"{note}\n")
    return policy


@contextmanager
def running(policy: dict[str, Any], folder: Path, n_nodes: int) -> Iterator[list[BrokerProcess]]:
    """Run brokers for a block; clients come in where the policy says, to the next one each time."""
    with ExitStack() as stack:
        services: list[tuple[socket.socket, list[int]]] = []
        for keys in policy["listeners"].values():
            port = int(keys["bind"].rpartition(":")[2])
            sock = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=100))
            services.append((sock, []))
            keys["bind"] = "127.0.0.1:0"
        nodes = []
        prefix = folder.name if "persistence" in policy else uuid.uuid4().hex
        if n_nodes > 1:
            policy.pop("persistence", None)
        for number in range(n_nodes):
            if n_nodes > 1:
                redis = {"server": f"127.0.0.1:{os.environ['SUITE_REDIS']}", "prefix": prefix}
                section = {"name": "suite", "node": f"node{number}", "redis": redis}
                policy["cluster"] = section
            own = folder / f"node{number}"
            own.mkdir(exist_ok=True)
            node = BrokerProcess(policy, own)
            stack.callback(node.end)
            nodes.append(node)
            if not node.port:
                raise PenstockError(node.log)
            for name, (_, ports) in zip(policy["listeners"], services, strict=True):
                node.wait_for_log(f"listener {name}: listening")
                ports.append(node.ports[name])
        stack.enter_context(load_balancer(folder, *services))
        yield nodes
        for node in nodes:
            node.stop()
            sys.stderr.write(node.log)


def main(words: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; return 0, or `REFUSED`."""
    parser = argparse.ArgumentParser("mosquitto")
    parser.add_argument("-c", dest="file", type=Path)
    parser.add_argument("-p", dest="port", type=int)
    parser.add_argument("-v", action="store_true")
    given = parser.parse_args(words)
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    folder = Path(os.environ["SUITE_FOLDER"])
    file = given.file
    if file is None:
        file = folder / "mosquitto.conf"
        file.write_text(f"listener {given.port}\nallow_anonymous true\n")
    try:
        policy = policy_of(file)
        n_nodes = int(os.environ["SUITE_NODES"])
        with forked_programs(), running(policy, folder, n_nodes) as nodes:
            while signals.get() == signal.SIGHUP:
                for node in nodes:
                    node.process.send_signal(signal.SIGHUP)
    except PenstockError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
