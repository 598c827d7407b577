"""One client's report as lines of text, as `penstock why` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.plugins.web.terminal_escape import printable

Report = Mapping[str, Any]
"""A report, or a part of one, as parsed JSON; see `penstock.broker.client_report`."""

_IN_SECONDS: Final = 0.9995
"""A longer time is shown in seconds: three digits of milliseconds would not be enough."""

_WORTH_TELLING_SECONDS: Final = 0.5
"""A shorter mean wait behind large messages is not shown: it needs no second connection, and a busy
machine causes as much."""


def describe(client: Report) -> list[str]:
    """Return the lines about a client.

    Raises:
        KeyError: a part of the report is missing.
        TypeError: a part has another type.
    """
    return [
        _who(client),
        *_mailbox(client.get("mailbox")),
        *_subscriptions(client["subscriptions"]),
        *_link(client["link"]),
        *_large_messages(client["withholding"]),
        *_small_waits(client["withholding"]["small_waits"]),
        *_ledger(client["ledger"]),
    ]


def describe_proxy(state: Report) -> list[str]:
    """Return the lines about a proxy.

    Raises:
        KeyError: a part of its state is missing.
        TypeError: a part has another type.
    """
    lines = []
    for one in state["upstreams"]:
        words = f"{'up' if one['is_up'] else 'down'} for {_seconds(one['since_seconds'])}"
        if one["why"]:
            words += f" ({printable(one['why'])})"
        if one["silent"]:
            words += f", silent on {one['silent']:,}"
        lines.append(f"upstream {one['address']}: {words}, connections: {one['connections']:,}")
    clients = state["clients"]
    line = f"clients: {clients['connected']:,} connected, {clients['gone']:,} gone"
    refused = [f"{n:,} refused ({printable(why)})" for why, n in clients["refused"].items()]
    lines += [", ".join([line, *refused]), _balance(state["messages"])]
    figures = [f"{name} {n:,}" for name, n in state["payload_store"].items()]
    lines.append(f"payload store: {', '.join(figures)}")
    return lines


def _who(client: Report) -> str:
    words = "connected" if client["is_connected"] else "not connected"
    if client.get("node"):
        words += f", at node {printable(client['node'])}"
    if client["why_away"]:
        words += f" ({printable(client['why_away'])})"
    if client["gone_seconds"] is not None:
        words = f"gone for {_seconds(client['gone_seconds'])}"
    if client["username"] is not None:
        words += f", user {printable(client['username'])}"
    if client["listener"]:
        words += f", listener {printable(client['listener'])}"
    return f"{printable(client['client_id'])}: {words}"


def _mailbox(box: Report | None) -> Iterator[str]:
    """Say what waits outside of the node that has the client."""
    if box is None:
        return
    words = f"{box['messages']:,}, {_bytes(box['bytes'])}"
    if box["away_seconds"] is not None:
        words += f"; away for {_seconds(box['away_seconds'])}"
    if box["expires_seconds"] is not None:
        words += f", kept for {_seconds(box['expires_seconds'])} more"
    yield f"mailbox: {words}"


def _subscriptions(subscriptions: Report | None) -> Iterator[str]:
    """Name the size classes, where a subscription has one."""
    if subscriptions is None:
        return
    words = [
        f"{subscriptions[sizes]:,} to {sizes} messages alone"
        for sizes in ("small", "large")
        if subscriptions[sizes]
    ]
    if words:
        yield f"subscriptions: {subscriptions['total']:,}, {' and '.join(words)}"


def _link(link: Report) -> Iterator[str]:
    source, age = link["rtt_source"], link["rtt_age_seconds"]
    if link["rtt_latest"] is not None:
        line = f"link: RTT {_seconds(link['rtt_latest'])}, from {source} {_seconds(age)} ago"
        threshold_l = link["threshold_l"]
        if threshold_l is not None:
            is_above = link["rtt_latest"] > threshold_l
            line += f": {'congested, above' if is_above else 'calm, not above'} "
            line += f"threshold_l, {_seconds(threshold_l)}"
        yield line
    elif age is not None:
        yield f"link: no recent RTT; the last was from {source} {_seconds(age)} ago"
    else:
        yield "link: no RTT yet"
    if link["rtt_min"] is not None:
        yield f"  least RTT: {_seconds(link['rtt_min'])}"
    outstanding = link["outstanding_age_seconds"]
    if outstanding is not None:
        yield f"  unanswered for {_seconds(outstanding)}: {_bytes(link['outstanding_bytes'])}"
    tcp = link["tcp"]
    if link["unsent_bytes"] or tcp is not None:
        in_kernel = f", {_bytes(tcp['unsent_bytes'])} in the kernel" if tcp is not None else ""
        yield f"  unsent: {_bytes(link['unsent_bytes'])} in the broker{in_kernel}"
    if tcp is not None:
        yield _tcp(tcp)


def _tcp(tcp: Report) -> str:
    rate, ratio = tcp["delivery_rate_bytes_per_second"], tcp["retransmit_ratio"]
    words = []
    if rate is not None:
        words.append(f"{_bytes(rate)} a second{' or more' if tcp['is_app_limited'] else ''}")
    words.append(f"{tcp['retransmissions']:,} segments retransmitted")
    if ratio is not None:
        words.append(f"{ratio:.1%} of the recent ones")
    name = tcp["congestion_control"]
    return f"  TCP{'' if name is None else f' ({name})'}: {', '.join(words)}"


def _large_messages(withholding: Report) -> Iterator[str]:
    decision = withholding["last_decision"]
    if decision is None:
        yield "large messages: none yet"
        return
    n_withheld = withholding["withheld_total"]
    if n_withheld:
        yield (
            f"large messages: {n_withheld:,} {'was' if n_withheld == 1 else 'were'} withheld, "
            f"{withholding['released_total']:,} of them sent then"
        )
    else:
        yield "large messages: none was withheld"
    what = f"{_bytes(decision['payload_bytes'])} on {printable(decision['topic'])}"
    waited, age = decision["withheld_seconds"], _seconds(decision["age_seconds"])
    if decision["outcome"] == "held":
        again = withholding["look_again_in_seconds"]
        when = "" if again is None else f", looked at again in {_seconds(again)} at the latest"
        yield f"  held now, for {_seconds(waited)}: {what}{when}"
        n_more = withholding["withheld"] - 1
        if n_more > 0:
            yield f"  {n_more:,} more {'is' if n_more == 1 else 'are'} withheld"
    elif decision["outcome"] == "sent":
        after = f"after {_seconds(waited)}" if waited else "at once"
        yield f"  the last was sent {age} ago, {after}: {what}"
    else:
        yield f"  the last was held {age} ago and has expired, was dropped or moved: {what}"
    yield f"  because {printable(decision['reason'])}"
    if withholding["passage"] is not None:
        yield from _passage(withholding["passage"])
    for one in withholding["recent"]:
        yield _recent(one)


def _small_waits(waits: Report | None) -> Iterator[str]:
    """Say what a client with one connection would gain from another one."""
    if waits is None or waits["mean_seconds"] < _WORTH_TELLING_SECONDS:
        return
    n, minutes = waits["messages"], max(1, round(waits["since_seconds"] / 60))
    yield (
        f"  {n:,} small {'message' if n == 1 else 'messages'} waited "
        f"{_seconds(waits['mean_seconds'])} on average behind large ones in the last "
        f"{'minute' if minutes == 1 else f'{minutes} minutes'}; with two lanes "
        f"{'it' if n == 1 else 'they'} would not: docs/how-to/lanes.md"
    )


def _passage(passage: Report) -> Iterator[str]:
    """Say what large messages take, and what is on its way."""
    last, rate, bad_rate = (
        passage[name] for name in ("last_seconds", "bytes_per_second", "bad_bytes_per_second")
    )
    if last is not None:
        at_a_rate = "" if rate is None else f", {_bytes(round(rate))} a second"
        on_bad = "not known yet" if bad_rate is None else f"{_bytes(round(bad_rate))} a second"
        yield f"  the last one took {_seconds(last)}{at_a_rate}; on the bad path: {on_bad}"
    if passage["pause_seconds"]:
        yield f"  a pause after a slow one, for {_seconds(passage['pause_seconds'])} more"
    if passage["on_way_bytes"]:
        age = _seconds(passage["on_way_seconds"])
        yield f"  on the way, not acknowledged: {_bytes(passage['on_way_bytes'])}, for {age}"


def _recent(decision: Report) -> str:
    """Return the line of a hold or a release."""
    what = f"{_bytes(decision['payload_bytes'])} on {printable(decision['topic'])}"
    was = "held"
    if decision["outcome"] == "sent":
        was = f"released after {_seconds(decision['withheld_seconds'])}"
    cause = printable(decision["cause"])
    return f"  {_seconds(decision['age_seconds'])} ago: {was} ({cause}): {what}"


def _ledger(ledger: Report) -> Iterator[str]:
    yield _balance(ledger)
    if ledger["withheld"] or ledger["queued"]:
        waits_for = printable(ledger["waits_for"].partition(":")[0])
        yield f"  {_bytes(ledger['queued_bytes'])} wait: {waits_for}"


def _balance(ledger: Report) -> str:
    """Say where the messages of a ledger are."""
    places = ("delivered", "inflight", "withheld", "queued", "expired", "moved")
    parts = [f"{ledger[place]:,} {place}" for place in places if ledger[place]]
    parts += [f"{n:,} dropped ({reason})" for reason, n in sorted(ledger["dropped"].items())]
    return f"messages: {ledger['matched']:,}{' = ' if parts else ''}{' + '.join(parts)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < _IN_SECONDS else f"{seconds:,.1f} s"


def _bytes(n_bytes: int) -> str:
    return f"{n_bytes:,} bytes"
