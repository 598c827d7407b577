"""Faults: a full disk, and files of the broker that are damaged or deleted."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from benchmarks.loads import wire
from penstock.netem.errors import RunError
from tests.campaigns.faults.case import PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

N_MESSAGES: Final = 4_000
PAYLOAD: Final = bytes(1_000)
FILE_BYTES_OF_MESSAGE: Final = 500
"""Half of the file space that a message takes, so that the disk is full in the middle of one."""

LEAST_FILE_BYTES: Final = 200_000
ANSWER_SECONDS: Final = 2.0
LOST_SECONDS: Final = 2.0
"""After a silence of this length, missing messages are lost."""

PUBACK_SECONDS: Final = 0.5
"""A publish that is not answered in this time found no room."""

N_DAMAGES: Final = 50
N_STORED: Final = 1_000
DAMAGE_BYTES: Final = 64

DATABASES: Final = ("sessions.db", "queue.db")
POLICY: Final = {
    "persistence": {"path": "sessions.db", "durability": "normal"},
    "plugins": {
        "queue": {
            "path": "queue.db",
            "http": None,
            "queues": {"q": {"topics": ["q/#"], "groups": {"reader": {"kind": "offsets"}}}},
        }
    },
}
LINES: Final = ("persistence true", "autosave_interval 1", "max_queued_messages 0")


def _publish(port: int, n_messages: int, first_seconds: float = PUBACK_SECONDS) -> set[int]:
    """Publish numbered messages at QoS 1; return those that were acknowledged.

    Args:
        port: the port of the broker.
        n_messages: the number of messages.
        first_seconds: the longest wait for the first acknowledgement.
    """
    acknowledged: set[int] = set()
    with wire.open_client(port, "publisher") as sock:
        for number in range(1, n_messages + 1):
            payload = number.to_bytes(4, "big") + PAYLOAD
            sock.settimeout(PUBACK_SECONDS if acknowledged else first_seconds)
            try:
                sock.sendall(wire.publish_packet("t/x", payload, number))
                wire.expect(sock, wire.acknowledgement(wire.PUBACK, number))
            except (OSError, wire.WireError):
                break
            acknowledged.add(number)
    return acknowledged


def keep_session(port: int) -> None:
    """Subscribe, and leave a session that is kept."""
    with wire.open_client(port, "kept", is_clean=False) as sock:
        wire.subscribe(sock, "t/#", 1)


def read_kept(port: int, awaited: set[int]) -> set[int]:
    """Return the numbers that wait for the session, until the awaited ones or none come."""
    numbers: set[int] = set()
    with wire.open_client(port, "kept", is_clean=False) as sock:
        sock.settimeout(LOST_SECONDS)
        with suppress(TimeoutError, wire.WireError):
            while not awaited <= numbers and (packet := wire.receive_packet(sock)):
                if packet[0] & 0xF0 == wire.PUBLISH:
                    found = wire.read_publish(packet)
                    at = found.packet_id_at
                    packet_id = int.from_bytes(packet[at : at + 2], "big")
                    sock.sendall(wire.acknowledgement(wire.PUBACK, packet_id))
                    numbers.add(int.from_bytes(packet[found.payload_at :][:4], "big"))
    return numbers


def _let_store(broker: Subject) -> None:
    """Wait until mosquitto has stored what it has acknowledged, which it does once a second."""
    if not broker.is_ours:
        time.sleep(2)


def fill(broker: Subject, _rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Publish beyond what the disk takes, kill, restart on the full disk, then with room."""
    n_messages = effort.count(N_MESSAGES, least=400)
    file_bytes = LEAST_FILE_BYTES + n_messages * FILE_BYTES_OF_MESSAGE
    broker.configure(POLICY, LINES, file_bytes=file_bytes)
    broker.start()
    keep_session(broker.port)
    acknowledged = _publish(broker.port, n_messages, wire.HANDSHAKE_TIMEOUT_SECONDS)
    _let_store(broker)
    broker.kill()
    restarts = 0
    with suppress(RunError):
        broker.start()
        restarts = 1
        broker.kill()
    broker.configure(POLICY, LINES)
    broker.start()
    lost = acknowledged - read_kept(broker.port, acknowledged)
    return [
        Finding("messages acknowledged", len(acknowledged), least=1),
        Finding("acknowledged messages lost", len(lost), most=0),
        Finding("restarts on the full disk", restarts, least=1),
    ]


def _serves(broker: Subject) -> bool:
    """Start a broker; say whether it serves, and wait for its end where it does not.

    Raises:
        RunError: it neither serves nor ends.
    """
    try:
        broker.start()
    except RunError:
        if broker.running.poll() is None:
            raise
        return False
    return True


def damage(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Write over a random part of a database, again and again; each start serves or tells why."""
    broker.configure(POLICY)
    broker.start()
    keep_session(broker.port)
    with wire.open_client(broker.port, "publisher") as sock:
        for number in range(1, effort.count(N_STORED, least=50)):
            topic = f"{'tq'[number % 2]}/x"
            sock.sendall(wire.publish_packet(topic, PAYLOAD, number))
            wire.expect(sock, wire.acknowledgement(wire.PUBACK, number))
    broker.stop()
    whole = {name: (broker.folder / name).read_bytes() for name in DATABASES}
    n_damages = effort.count(N_DAMAGES, least=2)
    n_served = n_unnamed = 0
    for _ in range(n_damages):
        damaged = rng.choice(DATABASES)
        for name, data in whole.items():
            (broker.folder / name).write_bytes(data)
            for end in ("-wal", "-shm"):
                (broker.folder / f"{name}{end}").unlink(missing_ok=True)
        at = rng.randrange(len(whole[damaged]) - DAMAGE_BYTES)
        with (broker.folder / damaged).open("r+b") as file:
            file.seek(at)
            file.write(rng.randbytes(DAMAGE_BYTES))
        log_before = len(broker.log)
        if _serves(broker):
            n_served += 1
            with suppress(OSError, wire.WireError), ExitStack() as stack:
                sock = stack.enter_context(wire.open_client(broker.port, "p"))
                sock.settimeout(ANSWER_SECONDS)
                sock.sendall(wire.publish_packet("q/x", PAYLOAD, 1))
                wire.receive_packet(sock)
            broker.stop()
        elif damaged not in broker.log[log_before:]:
            n_unnamed += 1
    return [
        Finding("starts with a damaged database", n_damages),
        Finding("starts that served", n_served),
        Finding("that ended without naming the file", n_unnamed, most=0),
        Finding("tracebacks in the log", broker.log.count("Traceback"), most=0),
    ]


def delete(broker: Subject, _rng: random.Random, _effort: Effort) -> Sequence[Finding]:
    """Delete the databases under a running broker; count what is acknowledged and then gone."""
    broker.configure(POLICY, LINES)
    broker.start()
    keep_session(broker.port)
    for file in broker.folder.glob("*.db*"):
        file.unlink()
    time.sleep(2)
    acknowledged = _publish(broker.port, 20)
    _let_store(broker)
    broker.kill()
    broker.start()
    lost = acknowledged - read_kept(broker.port, acknowledged)
    return [Finding("acknowledged 2 s later, and gone with the process", len(lost), most=0)]


FULL_DISK: Final = Fault(
    "full_disk",
    "no file may grow any more, amid a load; the broker is killed and starts again on that",
    fill,
)
DAMAGED: Final = Fault(
    "damaged",
    f"{DAMAGE_BYTES} bytes anywhere in a database are overwritten before the start",
    damage,
    (PENSTOCK,),
)
DELETED: Final = Fault("deleted", "the databases are deleted under a running broker", delete)
