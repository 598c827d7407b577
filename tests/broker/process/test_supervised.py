"""What a worker hears of its supervisor, and tells it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.broker.operations_contract import Reloaded
from penstock.broker.process.supervised import MOST_BYTES, Supervised, from_json, to_json

DONE = Reloaded(["file"], ["a"], ["b"], {"c": "why\nso"})


async def test_an_account_is_the_same_on_the_other_side() -> None:
    """Whatever characters it has."""
    assert from_json(to_json(DONE)) == DONE
    assert "\n" not in to_json(DONE)


@pytest.mark.parametrize(("n_faults", "n_told"), [(10_000, 1), (1, 0)])
async def test_an_account_of_very_much_fits_into_a_message(n_faults: int, n_told: int) -> None:
    """The log has all: such as each line of a wrong file, or one fault that names all of them."""
    why = "é" * (1_000_000 // n_faults)
    done = Reloaded(["file"], failed={f"line {n}": why for n in range(n_faults)})
    text = to_json(done)
    assert len(text) < MOST_BYTES // 2
    found = from_json(text)
    *first, last = found.failed.items()
    assert len(first) >= n_told
    assert first == list(done.failed.items())[: len(first)]
    assert last == ("further", f"{n_faults - len(first):,}: the log has them")


async def test_a_worker_reloads_answers_and_stops() -> None:
    """When the supervisor asks for it, and when it has ended."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setblocking(False)
    worker = Supervised(theirs.detach(), {"WATCHDOG_USEC": "1000000"})
    n_reloads = 0

    async def reload() -> Reloaded:
        nonlocal n_reloads
        n_reloads += 1
        if n_reloads == 2:
            raise ValueError("a fault")
        return DONE

    worker.follow(loop, reload, stopped.set)
    with link:
        worker.beat(loop)
        assert await loop.sock_recv(link, 1000) == b"WATCHDOG=1"
        await loop.sock_sendall(link, b"X_RELOAD=1")
        assert await loop.sock_recv(link, 1000) == f"X_RELOADED={to_json(DONE)}".encode()
        await loop.sock_sendall(link, b"X_RELOAD=1")
        assert b"ValueError: a fault" in await loop.sock_recv(link, 1000)
        asked = asyncio.create_task(worker.reload_all())
        assert await loop.sock_recv(link, 1000) == b"X_RELOAD=1"
        await loop.sock_sendall(link, f"X_RELOADED={to_json(DONE)}".encode())
        assert await asked == DONE
    await stopped.wait()


def test_what_is_no_socket_is_refused() -> None:
    """As where the option of a worker is given by hand."""
    with open("/dev/null") as file, pytest.raises(OSError, match="socket"):  # noqa: PTH123
        Supervised(file.fileno())
