"""What a broker's clients, watch and links have written, as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from penstock.netem.clients.bulk_flow import read_flow_file
from penstock.netem.clients.publisher import SMALL_BYTES, read_published_file
from penstock.netem.clients.roster import Roster, publisher_files, subscriber_files, witness_files
from penstock.netem.clients.subscriber import read_delivered_file
from penstock.netem.figures.records import (
    BadPhaseRow,
    DeliveryRow,
    FlowRow,
    LinkRow,
    MessageRow,
    PacketsRow,
    Tables,
    WithheldRow,
)
from penstock.netem.links.channel import Counts
from penstock.netem.links.device_drops import DeviceDrops
from penstock.netem.runs.scenario import LinkPlan, Scenario
from penstock.netem.runs.withheld_watch import Look, intervals, read_looks_file


def message_rows(roster: Roster, files: Path, begin_at: float) -> list[MessageRow]:
    """Return the messages that publishers have published.

    Args:
        roster: who took part.
        files: the directory of what clients have written.
        begin_at: monotonic seconds of the beginning.
    """
    arrived: dict[tuple[int, int, int], float] = {}
    for each in read_delivered_file(witness_files(files)[0]):
        arrived.setdefault((each.publisher, each.stream, each.number), each.at - begin_at)
    rows = []
    for publisher in roster.publishers:
        due = {
            roster.streams.index(stream): roster.times(publisher, stream).due_seconds()
            for stream in publisher.publisher.streams
        }
        for message in read_published_file(publisher_files(files, publisher.number)[0]):
            name = roster.streams[message.stream]
            stream = roster.scenario.traffic[name]
            acknowledged_at = message.acknowledged_at
            rows.append(
                MessageRow(
                    broker=roster.broker,
                    seed=roster.seed,
                    publisher=publisher.client_id,
                    stream=name,
                    topic=roster.topic(publisher, name),
                    number=message.number,
                    payload_bytes=stream.payload_bytes,
                    qos=stream.qos,
                    due_s=due[message.stream][message.number],
                    published_s=message.published_at - begin_at,
                    acknowledged_s=None if acknowledged_at is None else acknowledged_at - begin_at,
                    arrived_s=arrived.get((publisher.number, message.stream, message.number)),
                )
            )
    return rows


def delivery_rows(roster: Roster, files: Path, begin_at: float) -> list[DeliveryRow]:
    """Return what subscribers have got, each one's in the order of arrival."""
    return [
        DeliveryRow(
            broker=roster.broker,
            seed=roster.seed,
            subscriber=subscriber.client_id,
            publisher=roster.publishers[each.publisher].client_id,
            stream=roster.streams[each.stream],
            number=each.number,
            qos=each.qos,
            is_duplicate=each.is_duplicate,
            delivered_s=each.at - begin_at,
        )
        for number, subscriber in enumerate(roster.subscribers)
        for each in read_delivered_file(subscriber_files(files, number)[0])
    ]


def withheld_rows(roster: Roster, watch_file: Path, begin_at: float) -> list[WithheldRow]:
    """Return when messages were withheld from which subscriber, in the order of their ends."""
    subscribers_of = roster.subscribers_of()
    return [
        WithheldRow(
            roster.broker,
            roster.seed,
            subscriber,
            each.begin - begin_at,
            each.end - begin_at,
            each.most_messages,
        )
        for each in intervals(read_looks_file(watch_file))
        for subscriber in subscribers_of[each.client_id]
    ]


def link_rows(
    roster: Roster,
    link: str,
    log: Sequence[tuple[float, str]],
    begin_at: float,
    end_at: float,
) -> list[LinkRow]:
    """Return for which times a link had which profile.

    Args:
        roster: who took part.
        link: its name.
        log: monotonic seconds and the profile's name of each change, the first included.
        begin_at: monotonic seconds of the beginning.
        end_at: those of the end of the last row.
    """
    (usual,) = (each.profile for each in roster.scenario.topology.links if each.name == link)
    changes: list[tuple[float, str]] = []
    for at, profile in log:
        if not changes or changes[-1][1] != profile:
            changes.append((at, profile))
    ends = [at for at, _ in changes[1:]] + [end_at]
    return [
        LinkRow(
            roster.broker,
            roster.seed,
            link,
            profile,
            profile != usual,
            at - begin_at,
            end - begin_at,
        )
        for (at, profile), end in zip(changes, ends, strict=True)
    ]


def flow_rows(roster: Roster, flow: str, file: Path, begin_at: float) -> list[FlowRow]:
    """Return the times for which a bulk flow sent."""
    return [
        FlowRow(
            roster.broker,
            roster.seed,
            flow,
            each.begin - begin_at,
            each.end - begin_at,
            each.acknowledged_bytes,
        )
        for each in read_flow_file(file)
    ]


def bad_phase_rows(roster: Roster, tables: Tables, looks: Sequence[Look]) -> list[BadPhaseRow]:
    """Return each beginning of an impairment or of a bulk flow on the way to those in focus.

    A large message is unfinished at that moment if the broker has it and its last bytes do not
    leave the link before the impairment. The latter is known from when the subscriber had it, less
    the delay from the link on.

    Args:
        roster: who took part.
        tables: with the broker's messages, deliveries, expected streams, links and flows in this
            run.
        looks: at what was withheld, in the order of time; seconds since the beginning.
    """
    scenario = roster.scenario
    phases = _bad_phases(scenario, tables.links)
    for row in tables.flows:
        phases.setdefault(row.flow, []).append((row.begin_s, row.end_s))
    rows = []
    for subscriber in roster.subscribers:
        if not subscriber.is_focus:
            continue
        way = scenario.topology.way(scenario.broker_host, subscriber.subscriber.host) or []
        connections = roster.known_as(subscriber)
        held = [each for each in looks if each.client_id in connections]
        spans = _large_spans(tables, subscriber.client_id)
        causes = [
            (link.name, _delay_from(scenario, roster.seed, way, n)) for n, link in enumerate(way)
        ]
        # Of a flow, it is not known which link's queue it fills.
        delay = _delay_from(scenario, roster.seed, way, 0)
        causes += [(flow, delay) for flow in scenario.flows_on(way)]
        for cause, delay in causes:
            for begin, end in phases.get(cause, []):
                unfinished = sum(at < begin < done - delay for at, done in spans)
                newest = {each.client_id: each.withheld for each in held if each.at <= begin}
                withheld = sum(newest.values())
                rows.append(
                    BadPhaseRow(
                        roster.broker,
                        roster.seed,
                        subscriber.client_id,
                        roster.units[subscriber.group],
                        cause,
                        begin,
                        end,
                        unfinished,
                        withheld,
                        unfinished > withheld,
                    )
                )
    return rows


def _bad_phases(
    scenario: Scenario, links: Sequence[LinkRow]
) -> dict[str, list[tuple[float, float]]]:
    """Return when each link was impaired during the traffic; what follows at once is one phase."""
    phases: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(links, key=lambda row: row.begin_s):
        end = min(row.end_s, scenario.duration_seconds)
        if not row.is_impaired or row.begin_s >= end:
            continue
        of_link = phases.setdefault(row.link, [])
        if of_link and of_link[-1][1] == row.begin_s:
            of_link[-1] = of_link[-1][0], end
        else:
            of_link.append((row.begin_s, end))
    return phases


def _large_spans(tables: Tables, subscriber: str) -> list[tuple[float, float]]:
    """Return from when to when each large message was the broker's to deliver to a subscriber."""
    done: dict[tuple[str, str, int], float] = {}
    for row in tables.deliveries:
        if row.subscriber == subscriber:
            done.setdefault((row.publisher, row.stream, row.number), row.delivered_s)
    streams = {
        (row.publisher, row.stream) for row in tables.expected if row.subscriber == subscriber
    }
    return [
        (
            row.published_s if row.arrived_s is None else row.arrived_s,
            done.get((row.publisher, row.stream, row.number), math.inf),
        )
        for row in tables.messages
        if row.payload_bytes > SMALL_BYTES and (row.publisher, row.stream) in streams
    ]


def _delay_from(scenario: Scenario, seed: int, way: Sequence[LinkPlan], number: int) -> float:
    """Return the unimpaired delay from a link on a way to the end of the way, seconds."""
    near = scenario.broker_host
    delays = []
    for link in way:
        first, second = link.between
        profile = scenario.profiles_of(link.name, seed)[link.profile]
        delays.append((profile.downstream if near == first else profile.upstream).delay)
        near = second if near == first else first
    return sum(delays[number:])


def looks_since(watch_file: Path, begin_at: float) -> list[Look]:
    """Return the looks of a watch, with seconds since the beginning."""
    return [
        each._replace(at=each.at - begin_at, before=each.before - begin_at)
        for each in read_looks_file(watch_file)
    ]


def packets_rows(
    roster: Roster,
    link: LinkPlan,
    device: str,
    counts: tuple[Counts, Counts],
    bytes_before: tuple[int, int],
    drops: Mapping[str, Mapping[str, DeviceDrops]],
) -> Iterator[PacketsRow]:
    """Yield what each direction of a link did to packets.

    Args:
        roster: who took part.
        link: of the topology.
        device: name of its device in both hosts.
        counts: towards the first host, and towards the second.
        bytes_before: carried before the beginning of the traffic, likewise.
        drops: of the devices of each host, by host and device.
    """
    first, second = (drops[host].get(device, DeviceDrops()) for host in link.between)
    for direction, each, before, sender, receiver in (
        ("upstream", counts[0], bytes_before[0], second, first),
        ("downstream", counts[1], bytes_before[1], first, second),
    ):
        # What a host's device refuses, it counts as dropped in reception too, or not at all.
        beyond = max(each.refused, receiver.received)
        yield PacketsRow(
            roster.broker,
            roster.seed,
            link.name,
            direction,
            each.taken,
            each.delivered,
            each.lost,
            each.dropped,
            sender.sent + each.overflowed + beyond,
            each.carried_bytes - before,
        )
