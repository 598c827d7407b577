"""The watch of a run, which records the messages that Penstock withholds.

``python -m penstock.netem.runs.withheld_watch`` asks the HTTP API of the plugin `console` and
writes a line for each look at which something is withheld, or has been since the look before:

``CLIENT_ID SECONDS SECONDS_BEFORE WITHHELD WITHHELD_TOTAL``, monotonic seconds of this look and of
the one before.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

MOST_ONE_BY_ONE: Final = 8
"""The most clients that are requested one by one; more are read from the list of all clients,
which costs the broker less than so many requests."""

PAGE_CLIENTS: Final = 1_000

TIMEOUT_SECONDS: Final = 60.0
"""The time limit of a request, seconds: a busy broker answers late."""


class WithheldLook(NamedTuple):
    """The state of one client at one look.

    Attributes:
        at: the time of the look, monotonic seconds.
        before: the time of the previous look, monotonic seconds.
        withheld_total: the messages that had been withheld since the start.
    """

    client_id: str
    at: float
    before: float
    withheld: int
    withheld_total: int


class WithheldInterval(NamedTuple):
    """A time for which messages were withheld from a client.

    Attributes:
        begin: the begin, monotonic seconds.
        end: the end, monotonic seconds.
        most_messages: the most messages that were withheld at a time.
    """

    client_id: str
    begin: float
    end: float
    most_messages: int


def intervals(looks: Iterable[WithheldLook]) -> Iterator[WithheldInterval]:
    """Yield when messages were withheld, by looks in the order of time.

    What began and ended between two looks lasts from the one to the other.
    """
    began: dict[str, float] = {}
    newest: dict[str, WithheldLook] = {}
    most: dict[str, int] = {}
    for look in looks:
        client_id = look.client_id
        earlier = newest.get(client_id)
        newest[client_id] = look
        if look.withheld:
            began.setdefault(client_id, look.at)
            most[client_id] = max(most.get(client_id, 0), look.withheld)
        elif client_id in began:
            yield WithheldInterval(client_id, began.pop(client_id), look.at, most.pop(client_id))
        else:
            more = look.withheld_total - (earlier.withheld_total if earlier else 0)
            yield WithheldInterval(client_id, look.before, look.at, more)
    for client_id, begin in began.items():
        yield WithheldInterval(client_id, begin, newest[client_id].at, most[client_id])


def read_looks_file(file: Path) -> list[WithheldLook]:
    """Return what a watch has written; nothing where it has not."""
    if not file.exists():
        return []
    looks = []
    for line in file.read_text().splitlines():
        client_id, at, before, withheld, total = line.rsplit(" ", 4)
        looks.append(WithheldLook(client_id, float(at), float(before), int(withheld), int(total)))
    return looks


class Noticed:
    """A filter of looks, which passes those that tell something new."""

    def __init__(self) -> None:
        self._newest: dict[str, WithheldLook] = {}

    def notice(self, client_id: str, at: float, withheld: int, total: int) -> WithheldLook | None:
        """Return a look that is to be written; None where nothing is and was withheld."""
        earlier = self._newest.get(client_id)
        look = WithheldLook(client_id, at, earlier.at if earlier else at, withheld, total)
        self._newest[client_id] = look
        was = (earlier.withheld, earlier.withheld_total) if earlier else (0, 0)
        return look if withheld or was != (0, total) else None


def _ask(connection: http.client.HTTPConnection, path: str) -> Any:
    """Return the answer to a question; None where there is no such client."""
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status == http.HTTPStatus.NOT_FOUND:
        return None
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"{path}: {response.status}: {body[:200]!r}")
    return json.loads(body)


def _figures(
    connection: http.client.HTTPConnection, client_ids: Sequence[str]
) -> Iterator[tuple[str, int, int]]:
    """Yield (client id, messages withheld, messages withheld in all)."""
    if len(client_ids) <= MOST_ONE_BY_ONE:
        for client_id in client_ids:
            report = _ask(connection, f"/api/clients/{quote(client_id, safe='')}")
            if report is not None:
                held = report["withholding"]
                yield client_id, held["withheld"], held["withheld_total"]
        return
    wanted = set(client_ids)
    after: str | None = ""
    while after is not None:
        page = _ask(connection, f"/api/clients?limit={PAGE_CLIENTS}&after={quote(after, safe='')}")
        for row in page["clients"]:
            if row["client_id"] in wanted:
                yield row["client_id"], row["withheld"], row["withheld_total"]
        after = page["next"]


def main(argv: list[str]) -> int:
    """Watch until the process is ended.

    Args:
        argv: HOST:PORT of the console, seconds between two looks, the file, and client ids.
    """
    address, period, file, *client_ids = argv
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    lines = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    noticed = Noticed()
    due_at = time.monotonic()
    while True:
        for client_id, withheld, total in _figures(connection, client_ids):
            look = noticed.notice(client_id, time.monotonic(), withheld, total)
            if look is not None:
                os.write(lines, (" ".join(map(str, look)) + "\n").encode())
        due_at = max(due_at + float(period), time.monotonic())
        time.sleep(max(0.0, due_at - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
