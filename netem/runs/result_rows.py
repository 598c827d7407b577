"""The rows of a run's tables, made from the clients' and the watch's files and links' counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from penstock.netem.clients.publisher import read_published_file
from penstock.netem.clients.roster import Roster, publisher_files, subscriber_files, witness_files
from penstock.netem.clients.subscriber import read_delivered_file
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    LinkRow,
    MessageRow,
    PacketsRow,
    WithheldRow,
)
from penstock.netem.links.channel import Counts
from penstock.netem.links.device_drops import DeviceDrops
from penstock.netem.runs.scenario import LinkPlan
from penstock.netem.runs.withheld_watch import intervals, read_looks_file


def message_rows(roster: Roster, files: Path, begin_at: float) -> list[MessageRow]:
    """Return the messages that publishers have published."""
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
    roster: Roster, link: str, log: Sequence[tuple[float, str]], begin_at: float, end_at: float
) -> list[LinkRow]:
    """Return the times for which a link had each profile.

    Args:
        roster: the clients that took part.
        link: the name of the link.
        log: the time (monotonic seconds) and the profile's name of each change, the first profile
            included.
        begin_at: the time of the beginning, monotonic seconds.
        end_at: the end of the last row, monotonic seconds.
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


def packets_rows(
    roster: Roster,
    link: LinkPlan,
    device: str,
    counts: tuple[Counts, Counts],
    bytes_before: tuple[int, int],
    drops: Mapping[str, Mapping[str, DeviceDrops]],
) -> Iterator[PacketsRow]:
    """Yield the fates of packets in each direction of a link."""
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
