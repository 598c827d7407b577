"""A real broker's ledger under paths of every kind: laws that hold however slow a machine is."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import NamedTuple

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.papers.model_vs_measured import ComparedFigure
from penstock.models.papers.patterns import live_run
from penstock.models.papers.patterns.live_run import (
    CELLS,
    PathKind,
    PathRuns,
    PathUnit,
    make_plan,
    run,
    run_cells,
)
from penstock.netem.clients.on_off_plan import OnOffRecords

QUEUED = 5
LEDGER = "$SYS/broker/penstock/ledger/"
AGREED_SECONDS = 30.0
KINDS = (
    PathKind("D, E", OnOff(0.4, 0.3), OnOff(0.4, 0.9), True, True, 1.0, QUEUED, 20.0),
    PathKind("D, B", OnOff(0.4, 0.3), OnOff(0.4, 0.6), True, False, 1.0, QUEUED, 10.0),
    PathKind("A, B", OnOff(0.4, 0.3), OnOff(0.4, 0.6), False, False, 1.0, QUEUED, 10.0),
)


class Ran(NamedTuple):
    """A run of seconds.

    Attributes:
        units: the paths.
        records: of the clients.
        ledger: the broker's, by topic.
    """

    units: list[PathUnit]
    records: OnOffRecords
    ledger: dict[str, int]


def read_ledger(port: int) -> dict[str, int]:
    """Return the broker's ledger, once all of it is of one moment."""
    found: dict[str, int] = {}
    agreed = threading.Event()

    def take(_client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        found[message.topic.removeprefix(LEDGER)] = int(message.payload)
        if found.get("matched", 0) and found["matched"] == accounted(found):
            agreed.set()

    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = take
    client.connect("127.0.0.1", port)
    client.subscribe(LEDGER + "#")
    client.loop_start()
    try:
        # Values are published one by one, so that for a moment they may not agree.
        deadline = time.monotonic() + AGREED_SECONDS
        while not agreed.wait(0.1) and time.monotonic() < deadline:
            pass
    finally:
        client.disconnect()
        client.loop_stop()
    return found


def accounted(ledger: dict[str, int]) -> int:
    """Return the messages of which the ledger says what became of them."""
    places = ("delivered", "expired", "moved", "inflight", "withheld", "queued")
    dropped = sum(number for name, number in ledger.items() if name.startswith("dropped/"))
    return dropped + sum(ledger.get(name, 0) for name in places)


@pytest.fixture(scope="module")
def ran() -> Ran:
    """All kinds of paths on one broker with room for few messages."""
    ledgers: list[dict[str, int]] = []
    units, records = run_cells(
        KINDS, PathRuns(3, 3.0), 1, lambda port: ledgers.append(read_ledger(port))
    )
    return Ran(units, records, ledgers[0])


def test_the_ledger_has_every_message(ran: Ran) -> None:
    """Matched: delivered, expired, dropped for a reason, or still there."""
    assert ran.ledger["matched"] == accounted(ran.ledger)
    accepted = [each for each in ran.records.answered if each.reason_code == 0]
    assert 0 < len(accepted) <= ran.ledger["matched"]
    assert ran.ledger["delivered"] > 0


def test_each_message_is_done_once_by_its_own_subscriber(ran: Ran) -> None:
    """What is done was sent, and what was refused never arrives."""
    sent = {(each.publisher, each.number) for each in ran.records.sent}
    done = Counter((each.publisher, each.number) for each in ran.records.worked)
    assert set(done.values()) == {1}
    assert done.keys() <= sent
    assert all(each.subscriber == each.publisher for each in ran.records.worked)
    arrived = {(each.publisher, each.number) for each in ran.records.arrived}
    answers = [(each.publisher, each.number, each.reason_code) for each in ran.records.answered]
    refused = {each[:2] for each in answers if each[2] >= 0x80}
    assert not refused & arrived


def test_nothing_is_delivered_after_its_lifetime(ran: Ran) -> None:
    """A message that was with the broker for longer before its subscriber connected is gone.

    A message that was on its way when the last connection ended comes again, marked as duplicate.
    """
    expires = {(each.publisher, each.number): each.expiry_seconds for each in ran.records.sent}
    stored = {(each.publisher, each.number): each.at for each in ran.records.answered}
    for each in ran.records.arrived:
        key = each.publisher, each.number
        if key in stored and not each.is_duplicate:
            assert each.asked_at <= stored[key] + expires[key]


def test_a_session_keeps_no_more_messages_than_k(ran: Ran) -> None:
    """What was with the broker when its subscriber asked, and comes for the first time then."""
    stored = {(each.publisher, each.number): each.at for each in ran.records.answered}
    waited = Counter(
        (each.subscriber, each.asked_at)
        for each in ran.records.arrived
        if not each.is_duplicate
        and stored.get((each.publisher, each.number), each.at) < each.asked_at
    )
    assert max(waited.values(), default=0) <= QUEUED


def test_the_model_has_the_same_messages(ran: Ran) -> None:
    """All that are created, with the times of the plan that clients follow."""
    plan = make_plan(ran.units, 1883)
    for unit, publisher in zip(ran.units, plan.publishers, strict=True):
        assert publisher.created == unit.draws.created.tolist()
        assert unit.modelled.created == len(publisher.created) == len(publisher.services)
        assert 0 <= unit.modelled.done <= unit.modelled.created - unit.modelled.full
        assert unit.modelled.seconds >= 0
    unreliable = [each for each in plan.subscribers if not each.keeps_session]
    assert len(unreliable) == 6
    assert {each.receive_maximum for each in unreliable} == {None}


def test_a_limit_has_a_broker_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of path has its rows, those with a limit one more."""
    capacities: list[set[int | None]] = []

    def make(
        cells: list[PathKind], runs: PathRuns, seed: int
    ) -> tuple[list[PathUnit], OnOffRecords]:
        capacities.append({each.capacity for each in cells})
        units = [
            live_run._make(cell, runs.seconds, live_run.np.random.default_rng([seed, number]))  # type: ignore[attr-defined]
            for cell, number in itertools.product(cells, range(runs.paths))
        ]
        return units, OnOffRecords()

    monkeypatch.setattr(live_run, "run_cells", make)
    rows: list[ComparedFigure] = run(PathRuns(6, 10.0), 0, lambda _: None)
    assert capacities == [{None}, {10}]
    assert [each.what for each in rows if "found it full" in each.what] == [
        f"{CELLS[-1].name}: found it full"
    ]
    assert all(each.measured.value == 0 for each in rows if each.what.endswith("success"))
