"""Fault: ``kill -9`` of the broker at random moments, while clients publish and receive."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.errors import BenchmarkError
from tests.campaigns.faults.case import PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.flows import V5, V311, Publisher, Subscriber, ledger_difference
from tests.campaigns.faults.pairs import Pairs
from tests.campaigns.faults.subject import Subject

N_KILLS: Final = 200
LONGEST_LIFE_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 15.0
"""After a silence of this length, no more messages are expected."""

POLICY: Final = {
    "persistence": {"path": "sessions.db", "durability": "normal"},
    "limits": {"queued_messages": 10_000_000},
    "sys_interval": 2,
}
SUBSCRIBERS: Final = (
    ("s0", V311, "load/#"),
    ("s1", V5, "load/#"),
    ("s2", V311, "alike/3/#"),
    ("s3", V5, "alike/5/#"),
)
PUBLISHERS: Final = (
    ("p0", V311, "load"),
    ("p1", V5, "load"),
    ("p2", V311, "alike/3"),
    ("p3", V5, "alike/5"),
)
"""Name, version, and what is subscribed or the prefix of topics. Messages for subscribers of their
own version go on as they came, in runs."""

LINES: Final = (
    "persistence true",
    "autosave_interval 1",  # it stores every second, the most often that it can
    "max_queued_messages 0",
)

N_PAIRS: Final = 64
N_SLOW_PAIRS: Final = 16
PLAIN_RATIO: Final = 0.2
"""The share of a broker's lives with `PENSTOCK_FAST_PATHS=off`."""

STOP_RATIO: Final = 0.1
"""The share of its ends that are those of an operator."""

COUNTED: Final = 100
"""The broker tells of so many lone messages at a time."""

_SITE: Final = '''"""Has lone messages, and tells of them; see `tests.campaigns.faults.kills`."""
import os
os.environ["PENSTOCK_FAST_PATHS"] = {fast_paths!r}
from penstock.broker.durable import commits
from penstock.broker.durable.session_journal import SessionJournal
commits.BUSY_RATIO = 0.0
_finished = SessionJournal.lone_finished
_file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_n_finished = 0
def _counted(self, receipt):
    global _n_finished
    _n_finished += 1
    if not _n_finished % {counted}:
        os.write(_file, b".")
    _finished(self, receipt)
SessionJournal.lone_finished = _counted
'''


def inflict(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Kill and start the broker again and again; count what was promised and did not come."""
    broker.configure(POLICY, LINES)
    broker.start()
    n_kills = effort.count(N_KILLS, least=2)
    with ExitStack() as stack:
        subscribers = [
            stack.enter_context(Subscriber(broker.port, name, version, topic_filter))
            for name, version, topic_filter in SUBSCRIBERS
        ]
        for subscriber in subscribers:
            if not subscriber.wait(lambda s=subscriber: s.is_subscribed, SETTLE_SECONDS):  # type: ignore[misc]
                raise BenchmarkError(f"{broker.name}: no SUBACK")
        publishers = [
            stack.enter_context(Publisher(broker.port, name, version, topic))
            for name, version, topic in PUBLISHERS
        ]
        flows = (*subscribers, *publishers)
        for number in range(n_kills):
            for flow in flows:
                # paho sends QoS 2 anew where a connection ends before its CONNACK.
                flow.wait(lambda f=flow, n=number: f.n_connects > n, SETTLE_SECONDS)  # type: ignore[misc]
            time.sleep(rng.uniform(0, LONGEST_LIFE_SECONDS))
            broker.kill()
            broker.start()
        for publisher in publishers:
            publisher.end(SETTLE_SECONDS)
        promised = set().union(*(publisher.acknowledged for publisher in publishers))
        wanted = [_promised(publishers, topic_filter) for _, _, topic_filter in SUBSCRIBERS]
        for subscriber, payloads in zip(subscribers, wanted, strict=True):
            subscriber.wait_for(payloads, IDLE_SECONDS)
        difference = ledger_difference(broker.port, SETTLE_SECONDS) if broker.is_ours else None
    without_dup = set().union(*(subscriber.without_dup for subscriber in subscribers))
    without_dup.difference_update(*(publisher.repeated for publisher in publishers))
    exactly_once = [payload for payload in promised if payload.split()[1] == b"2"]
    findings = [
        Finding("kills", n_kills),
        Finding("messages acknowledged to their publishers", len(promised)),
        Finding(
            "acknowledged messages lost",
            sum(len(w - s.got.keys()) for s, w in zip(subscribers, wanted, strict=True)),
            most=0,
        ),
        Finding(
            "of QoS 2 delivered more than once",
            sum(each.got[payload] > 1 for each in subscribers for payload in exactly_once),
            most=0,
        ),
        Finding("out of their topic's order", sum(s.disordered for s in subscribers), most=0),
        Finding("sent again without DUP", len(without_dup), most=0),
    ]
    if difference is not None:
        findings.append(Finding("ledger: matched less its parts", abs(difference), most=0))
    return findings


def _promised(publishers: Sequence[Publisher], topic_filter: str) -> set[bytes]:
    """Return the messages that were acknowledged to those of `PUBLISHERS` whom a filter matches."""
    pairs = zip(publishers, PUBLISHERS, strict=True)
    found = [each.acknowledged for each, (_, _, topic) in pairs if f"{topic}/#" == topic_filter]
    return set[bytes]().union(*found)


KILLS: Final = Fault(
    "kills",
    "the broker is killed (`kill -9`) at random moments while four clients publish at QoS 1 and 2 "
    "to four sessions that are kept; `durability: normal`, mosquitto with `autosave_interval 1`",
    inflict,
)


def inflict_on_pairs(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Kill a broker that keeps lone messages from its journal, however busy the machine is."""
    site, file = broker.folder / "site", broker.folder / "lone"
    site.mkdir()
    broker.configure(POLICY, site=site)
    n_kills = effort.count(N_KILLS, least=2)
    _write_site(site, file, "on")
    broker.start()
    n_plain = n_stops = 0
    with Pairs(broker.port, N_PAIRS, N_SLOW_PAIRS, rng) as pairs:
        pairs.wait(lambda _: file.stat().st_size > 0, SETTLE_SECONDS)
        for _ in range(n_kills):
            before = {pair: pair.n_connects for pair in pairs.pairs}
            is_plain = rng.random() < PLAIN_RATIO
            n_plain += is_plain
            time.sleep(rng.uniform(0, LONGEST_LIFE_SECONDS))
            if rng.random() < STOP_RATIO:
                n_stops += 1
                broker.stop()
            else:
                broker.kill()
            _write_site(site, file, "off" if is_plain else "on")
            broker.start()
            pairs.wait(lambda pair, n=before: pair.n_connects > n[pair], SETTLE_SECONDS)  # type: ignore[misc]
        pairs.is_ending = True
        pairs.wait(lambda pair: pair.is_drained, SETTLE_SECONDS)
        each = pairs.pairs
        n_lone = COUNTED * file.stat().st_size
        return [
            Finding("kills", n_kills - n_stops),
            Finding("ends by SIGTERM", n_stops),
            Finding("lives without fast paths", n_plain),
            Finding(
                "messages acknowledged to their publishers", sum(p.n_acknowledged for p in each)
            ),
            Finding("of them never in the journal", n_lone, least=COUNTED),
            Finding("acknowledged messages lost", sum(p.n_lost for p in each), most=0),
            Finding("out of their topic's order", sum(p.n_disordered for p in each), most=0),
            Finding("sent again", sum(p.n_repeats for p in each)),
            Finding("sent again without DUP", sum(p.n_without_dup for p in each), most=0),
            Finding("sessions lost", sum(p.n_sessions_lost for p in each), most=0),
        ]


def _write_site(folder: Path, file: Path, fast_paths: str) -> None:
    site = _SITE.format(fast_paths=fast_paths, file=str(file), counted=COUNTED)
    (folder / "sitecustomize.py").write_text(site, encoding="ascii")


PAIRS_KILLED: Final = Fault(
    "pairs_killed",
    f"a broker that counts as busy is killed while {N_PAIRS} pairs use it at QoS 1, "
    f"{N_SLOW_PAIRS} of them with slow subscribers; `durability: normal`",
    inflict_on_pairs,
    (PENSTOCK,),
)
