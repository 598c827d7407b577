"""Faults: users are removed from the password file, and a client guesses passwords."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.loads import wire
from penstock.netem.runs.broker_process import ANONYMOUS, find_program
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

N_CLIENTS: Final = 50
WITHIN_SECONDS: Final = 10.0
ELSEWHERE: Final = "127.0.0.2"
"""Another address of this machine, from which no password is guessed."""

MOST_JUDGED: Final = 12
"""The most passwords that are judged in up to two minutes: five at once, then one after 1, 2, 4,
... 60 s."""

JUDGED: Final = (4, 5)
"""The return codes of CONNACK for a bad user name or password, and for not authorized."""

POLICY: Final = {"plugins": {ANONYMOUS: None, "access": {"password_file": "passwords"}}}
LINES: Final = ("password_file passwords", "allow_anonymous false")


def _write_passwords(folder: Path, names: Iterable[str]) -> None:
    file = folder / "passwords"
    file.unlink(missing_ok=True)
    file.touch(0o600)
    for name in names:
        command = [find_program("mosquitto_passwd"), "-b", str(file), name, f"right-{name}"]
        subprocess.run(command, check=True, capture_output=True)


def _connect_packet(client_id: str, name: str, password: str) -> bytes:
    """Return a CONNECT of MQTT 3.1.1 with a user name and a password."""
    texts = b"".join(
        len(text).to_bytes(2, "big") + text.encode() for text in (client_id, name, password)
    )
    return wire.frame(0x10, b"\x00\x04MQTT\x04\xc2\x00\x00" + texts)


def _log_in(port: int, client_id: str, name: str, address: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 30, (address, 0))
    try:
        sock.sendall(_connect_packet(client_id, name, f"right-{name}"))
        wire.read_connack(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def revoke(broker: Subject, _rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Take one of two users out, reload, and count what the clients of that one still can do."""
    broker.configure(POLICY, LINES)
    _write_passwords(broker.folder, ["gone", "kept"])
    broker.start()
    n_clients = effort.count(N_CLIENTS, least=3)
    with ExitStack() as stack:
        reader = stack.enter_context(_log_in(broker.port, "reader", "kept"))
        wire.subscribe(reader, "t", 0)
        gone = [
            stack.enter_context(_log_in(broker.port, f"gone-{n}", "gone")) for n in range(n_clients)
        ]
        # The line of the other user stays as it is.
        command = [find_program("mosquitto_passwd"), "-D", str(broker.folder / "passwords"), "gone"]
        subprocess.run(command, check=True, capture_output=True)
        broker.reload()
        left = broker.wait_for_connections(1, WITHIN_SECONDS) - 1
        for sock in gone:
            with contextlib.suppress(OSError):
                sock.sendall(wire.publish_packet("t", b"from who is gone"))
        reader.settimeout(2)
        n_heard = 0
        with contextlib.suppress(TimeoutError):
            while wire.receive_packet(reader):
                n_heard += 1
    return [
        Finding("clients of a user who is taken out", n_clients),
        Finding(f"still connected {WITHIN_SECONDS:g} s after SIGHUP", left, most=0),
        Finding("messages of theirs delivered afterwards", n_heard, most=0),
    ]


def guess(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Try passwords one after the other, and log in by the right one from elsewhere."""
    broker.configure(POLICY, LINES)
    _write_passwords(broker.folder, ["user"])
    broker.start()
    n_tried = 0
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < effort.seconds:
        sock = socket.create_connection(("127.0.0.1", broker.port), 30)
        with sock:
            sock.settimeout(max(0.1, effort.seconds - elapsed))
            sock.sendall(_connect_packet("guesser", "user", f"{rng.random()}"))
            with contextlib.suppress(OSError):
                answer = sock.recv(4)
                # Server unavailable says that the password was not looked at.
                n_tried += len(answer) == 4 and answer[3] in JUDGED
    n_in = 0
    with contextlib.suppress(OSError, wire.WireError), _log_in(broker.port, "u", "user", ELSEWHERE):
        n_in = 1
    return [
        Finding("passwords judged, all from one address", n_tried, most=MOST_JUDGED),
        Finding("tried in seconds", effort.seconds, "s"),
        Finding("the user logs in from elsewhere meanwhile, times", n_in, least=1),
    ]


REVOKED: Final = Fault("revoked", "a user is taken out of the password file; SIGHUP", revoke)
GUESSING: Final = Fault("guessing", "a client guesses a user's password without a pause", guess)
