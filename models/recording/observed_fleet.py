"""The observed fleet: a planner's file that is made from the recording of a running broker.

Devices are distinguished by topics: a level with a digit becomes ``+``, so
``sensors/17/temperature`` is a message of the devices ``sensors-temperature``, each of which has a
topic. Messages above `LARGE_BYTES` count as devices of their own. Subscribers are distinguished by
their topic filters. Properties that a recording does not show are assumed, and the head of the file
says so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import yaml

from penstock.broker.mqtt.topics import matches
from penstock.models.planner.load import PACKET_BYTES
from penstock.models.recording.rows import FigureRow, MessageRow, RttRow, SubscriptionRow, read_rows

LARGE_BYTES: Final = 10_000
"""Messages of a topic above this payload count as devices of their own (threshold_s)."""
MOST_KINDS: Final = 8
"""The most kinds of devices; those with the fewest bytes are one kind together."""
MOST_RATE: Final = 1.25e9
"""The most bytes a second of a link: on loopback the kernel reports more, which no link carries."""
ASSUMED_RTT: Final = 0.05
ASSUMED_RATE: Final = 1_000_000
LEAST_SECONDS: Final = 1e-4
"""The least RTT in a fleet, seconds."""
SPARE: Final = 4.0
"""A link whose rate was not observed is assumed to carry this many times its traffic."""
OTHERS: Final = "others"


class ObservedFleet(NamedTuple):
    """The fleet and the figures of a recording.

    Attributes:
        figures: the newest value of each of the broker's figures, by name.
        rates: the rate of each of the broker's counters a second, by name.
    """

    fleet: dict[str, Any]
    notes: list[str]
    figures: Mapping[str, str]
    rates: Mapping[str, float]
    seconds: float

    def write(self, file: Path) -> None:
        """Write the fleet's file; overwrite what is there.

        Raises:
            OSError: it cannot be written.
        """
        head = [
            f"What a running broker showed in {self.seconds:,.0f} s; keys: plan.example.yaml",
            *self.notes,
        ]
        text = yaml.safe_dump(self.fleet, sort_keys=False, allow_unicode=True)
        file.write_text("".join(f"# {line}\n" for line in head) + f"\n{text}", encoding="utf-8")


class _Kind(NamedTuple):
    """Devices of one kind, with their messages by topic."""

    topic_filter: str
    messages: dict[str, list[MessageRow]]

    @property
    def all(self) -> list[MessageRow]:
        return [each for some in self.messages.values() for each in some]


def observe(folder: Path) -> ObservedFleet:
    """Return the fleet of a recording.

    Raises:
        OSError: a file cannot be read.
        ValueError: it holds something else, or neither messages nor subscribers to plan for.
    """
    rtts, messages = read_rows(folder, RttRow), read_rows(folder, MessageRow)
    figures, subscriptions = read_rows(folder, FigureRow), read_rows(folder, SubscriptionRow)
    ends = [rows[-1].seconds for rows in (rtts, messages, figures) if rows]
    seconds = max(ends, default=0.0)
    if not messages or not seconds:
        raise ValueError("no messages in the recording; allowed: a recording with messages")
    notes: list[str] = []
    kinds = _kinds(messages)
    rows_of = _by_client(rtts)
    links: dict[str, Any] = {}
    subscribers = _subscribers(kinds, subscriptions, rows_of, links, notes, seconds)
    if not subscribers:
        raise ValueError(
            "no subscriber of these messages in the recording; allowed: a recording with clients"
            " whose topic filters match them"
        )
    busiest = max(_bytes(kind) / len(kind.messages) / seconds for kind in kinds.values())
    known = [_rtt(row) for row in rtts if row.rtt_seconds is not None]
    links["devices"] = {
        "rtt_seconds": _seconds(median(known)) if known else ASSUMED_RTT,
        "bytes_per_second": max(ASSUMED_RATE, round(SPARE * busiest)),
    }
    notes.append(
        "The link of devices is not seen: the RTT is that of subscribers, the rate is assumed. QoS"
        " is not seen either: 1 is assumed. All devices are taken to be on all the time."
    )
    newest = {row.name: row.value for row in figures}
    fleet = {
        "links": links,
        "devices": {name: _devices(kind, seconds) for name, kind in kinds.items()},
        "subscribers": subscribers,
        "machine": {
            "cores": int(newest.get("penstock/machine/cores", "1")),
            "memory_bytes": int(newest.get("penstock/machine/memory_bytes", str(2**30))),
        },
    }
    return ObservedFleet(fleet, notes, newest, _rates(figures), seconds)


def _bytes(kind: _Kind) -> int:
    """Return the bytes of all messages of devices of a kind."""
    return sum(each.payload_bytes + PACKET_BYTES for each in kind.all)


def _shape(topic: str) -> str:
    """Return the topic filter of all topics that differ in levels with digits alone."""
    return "/".join("+" if re.search(r"\d", level) else level for level in topic.split("/"))


def _name(text: str, taken: Iterable[str]) -> str:
    """Return a name of the planner's form that is not taken."""
    name = re.sub(r"[^A-Za-z_]+", "-", text).strip("-_") or "devices"
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _kinds(messages: Iterable[MessageRow]) -> dict[str, _Kind]:
    found: dict[tuple[str, bool], _Kind] = {}
    for each in messages:
        shape = _shape(each.topic)
        kind = found.setdefault((shape, each.payload_bytes > LARGE_BYTES), _Kind(shape, {}))
        kind.messages.setdefault(each.topic, []).append(each)
    shapes = Counter(shape for shape, _ in found)
    heaviest = sorted(found, key=lambda key: -_bytes(found[key]))
    named: dict[str, _Kind] = {}
    for shape, is_large in heaviest[:MOST_KINDS]:
        suffix = "-large" if is_large and shapes[shape] > 1 else ""
        named[_name(shape + suffix, named)] = found[shape, is_large]
    rest: dict[str, list[MessageRow]] = defaultdict(list)
    for key in heaviest[MOST_KINDS:]:
        for topic, some in found[key].messages.items():
            rest[topic] += some
    if rest:
        named[_name(OTHERS, named)] = _Kind("#", dict(rest))
    return named


def _devices(kind: _Kind, seconds: float) -> dict[str, Any]:
    messages = kind.all
    expiries = [each.expiry_seconds for each in messages if each.expiry_seconds is not None]
    found: dict[str, Any] = {
        "count": len(kind.messages),
        "messages_per_second": float(f"{len(messages) / len(kind.messages) / seconds:.4g}"),
        "payload_bytes": max(1, round(fmean(each.payload_bytes for each in messages))),
        "link": "devices",
        "topics": kind.topic_filter,
    }
    if len(expiries) > len(messages) / 2:
        found["lifetime_seconds"] = float(max(1, median(expiries)))
    return found


def _by_client(rtts: Iterable[RttRow]) -> dict[str, list[RttRow]]:
    found = defaultdict(list)
    for row in rtts:
        found[row.client].append(row)
    return found


def _subscribers(
    kinds: Mapping[str, _Kind],
    subscriptions: Iterable[SubscriptionRow],
    rows_of: Mapping[str, list[RttRow]],
    links: dict[str, Any],
    notes: list[str],
    seconds: float,
) -> dict[str, Any]:
    """Return subscribers by name; add their links and what was assumed."""
    filters_of: dict[str, set[str]] = defaultdict(set)
    for row in subscriptions:
        if row.topic_filter is not None and not row.topic_filter.startswith("$"):
            filters_of[row.client].add(row.topic_filter)
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for client, filters in filters_of.items():
        groups[frozenset(map(_shape, filters))].append(client)
    found: dict[str, Any] = {}
    for clients in groups.values():
        shares = [_shares(kinds, filters_of[client]) for client in clients]
        sources = [name for name in kinds if any(share[name] for share in shares)]
        if not sources:
            continue
        weights = {name: len(kinds[name].all) for name in sources}
        share = fmean(
            sum(each[name] * weights[name] for name in sources) / sum(weights.values())
            for each in shares
        )
        name = _name(re.sub(r"[0-9a-f]*\d[0-9a-f]*", "", clients[0]) or "subscribers", found)
        rows = [rows_of[client] for client in clients if client in rows_of]
        n_bytes = share * sum(_bytes(kinds[source]) for source in sources) / seconds
        links[name] = _link(name, rows, n_bytes, notes)
        found[name] = {
            "count": len(clients),
            "devices": sources,
            "link": name,
            "share_ratio": float(f"{max(share, 1e-6):.3g}"),
            **_times(rows),
        }
    notes.append("Whether sessions are kept is not seen: it is assumed.")
    return found


def _shares(kinds: Mapping[str, _Kind], filters: set[str]) -> dict[str, float]:
    """Return the share of each kind's messages that a client gets."""
    found = {}
    for name, kind in kinds.items():
        got = [
            len(some)
            for topic, some in kind.messages.items()
            if any(matches(each, topic) for each in filters)
        ]
        found[name] = sum(got) / len(kind.all)
    return found


def _rtt(row: RttRow) -> float:
    """Return what is known of the RTT, seconds."""
    return max(row.rtt_seconds or 0.0, row.unanswered_seconds or 0.0)


def _is_bad(row: RttRow) -> bool:
    return row.threshold_l_seconds is not None and _rtt(row) > row.threshold_l_seconds


def _link(
    name: str, rows_of: Sequence[Sequence[RttRow]], n_bytes: float, notes: list[str]
) -> dict[str, Any]:
    """Return a kind of link, from looks at those who have it, and the bytes a second on each."""
    looks = [
        [row for row in rows if row.is_connected and row.rtt_seconds is not None]
        for rows in rows_of
    ]
    good = [row for rows in looks for row in rows if not _is_bad(row)]
    bad = [row for rows in looks for row in rows if _is_bad(row)]
    if not good:
        notes.append(f"The link of {name} is not seen: {ASSUMED_RTT:g} s is assumed.")
        rate = max(ASSUMED_RATE, round(SPARE * n_bytes))
        return {"rtt_seconds": ASSUMED_RTT, "bytes_per_second": rate}
    rate, is_least = _rate(good)
    if is_least:
        notes.append(
            f"The link of {name} may carry more: the broker never had enough to send. It is taken"
            f" to carry at least {SPARE:g} times what it had to."
        )
        rate = max(rate, round(SPARE * n_bytes))
    rtt = median(map(_rtt, good))
    link: dict[str, Any] = {"rtt_seconds": _seconds(rtt), "bytes_per_second": rate}
    n_phases, bad_seconds, good_seconds = 0, 0.0, 0.0
    for rows in looks:
        n_phases += sum(1 for is_bad, _ in groupby(map(_is_bad, rows)) if is_bad)
        for row, following in pairwise(rows):
            length = following.seconds - row.seconds
            if _is_bad(row):
                bad_seconds += length
            else:
                good_seconds += length
    if n_phases and bad_seconds and good_seconds:
        worse = median(map(_rtt, bad))
        measured, is_least = _rate(bad)
        slower = min(measured, rate) if not is_least else rate * min(1.0, rtt / worse)
        lost = [row.retransmit_ratio for row in bad if row.retransmit_ratio is not None]
        link["bad"] = {
            "rtt_seconds": _seconds(worse),
            "bytes_per_second": max(1, round(slower)),
            "loss_ratio": float(f"{min(fmean(lost), 0.9) if lost else 0.0:.3g}"),
        }
        link["good_seconds"] = float(f"{good_seconds / n_phases:.3g}")
        link["bad_seconds"] = float(f"{bad_seconds / n_phases:.3g}")
    return link


def _rate(rows: Iterable[RttRow]) -> tuple[int, bool]:
    """Return bytes a second, and whether the path may carry more."""
    known = [
        (row.bytes_per_second, row.is_app_limited)
        for row in rows
        if row.bytes_per_second is not None
    ]
    full = [rate for rate, is_limited in known if not is_limited]
    if full:
        return round(min(max(1.0, median(full)), MOST_RATE)), False
    most = max((rate for rate, _ in known), default=ASSUMED_RATE)
    return round(min(max(1.0, most), MOST_RATE)), True


def _times(rows_of: Iterable[Sequence[RttRow]]) -> dict[str, float]:
    """Return mean times on and off, where somebody was seen to go and to come back."""
    n_gone, n_back, on_seconds, off_seconds = 0, 0, 0.0, 0.0
    for rows in rows_of:
        for row, following in pairwise(rows):
            length = following.seconds - row.seconds
            if row.is_connected:
                on_seconds += length
                n_gone += not following.is_connected
            else:
                off_seconds += length
                n_back += following.is_connected
    if not (n_gone and n_back and on_seconds and off_seconds):
        return {}
    return {
        "on_seconds": float(f"{on_seconds / n_gone:.3g}"),
        "off_seconds": float(f"{off_seconds / n_back:.3g}"),
    }


def _seconds(value: float) -> float:
    return float(f"{max(value, LEAST_SECONDS):.3g}")


def _rates(figures: Iterable[FigureRow]) -> dict[str, float]:
    """Return how fast each number grew between its first and last value, a second."""
    rows_of = defaultdict(list)
    for row in figures:
        if re.fullmatch(r"-?\d+(\.\d+)?", row.value):
            rows_of[row.name].append(row)
    return {
        name: (float(rows[-1].value) - float(rows[0].value)) / (rows[-1].seconds - rows[0].seconds)
        for name, rows in rows_of.items()
        if rows[-1].seconds > rows[0].seconds
    }
