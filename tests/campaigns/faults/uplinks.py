"""Faults: an uplink to a broker that refuses some messages, and uplinks that form a ring."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.errors import BenchmarkError
from tests.campaigns.faults.case import MOSQUITTO, PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.flows import V5, Flow, Subscriber, read_sys
from tests.campaigns.faults.subject import Subject, subject

N_POISONS: Final = 140
N_GOOD: Final = 10
"""The number of messages around each one that is not taken."""

CASES: Final = (
    *((way, kind) for way in ("five", "three") for kind in ("tab", "large", "retained")),
    ("down", "properties"),
)
"""The way of a message, which is its first topic level, and why it is not taken."""

LINES: Final = ("max_packet_size 20000", "retain_available false", "max_inflight_messages 1000")
LARGE_BYTES: Final = 30_000
N_PROPERTIES: Final = 300
"""More User Properties than `limits.properties` allows by default."""

N_RINGS: Final = 12
N_ROUND: Final = 100
"""The number of messages that go round."""

RINGS: Final[Sequence[Mapping[str, str]]] = (
    {"a": "b", "b": "a"},
    {"a": "b", "b": "c", "c": "a"},
    {"a": "bc", "b": "ca", "c": "ab"},
)
"""The rings of sites: each site, with those to which it has an uplink."""

STORM: Final = 30
"""The number of deliveries of one message to one site after which the test stops waiting."""

WAIT_SECONDS: Final = 30.0
"""The longest wait for a message or a connection."""

QUIET_SECONDS: Final = 2.0
"""After a silence of this length, no more messages are expected."""


def _uplink(port: int, **keys: Any) -> dict[str, Any]:
    reconnect = {"min_seconds": 0.01, "max_seconds": 0.1}
    return {"upstream": {"address": f"127.0.0.1:{port}"}, "reconnect": reconnect, **keys}


def _configure(broker: Subject, site: str, uplinks: Mapping[str, Any]) -> None:
    plugins = {"uplink": {"site": site, "uplinks": uplinks}}
    limits = {"topic_control_characters": True}
    broker.configure({"plugins": plugins, "limits": limits, "sys_interval": 1})


@contextmanager
def _subscribed(port: int, name: str, topic_filter: str) -> Iterator[Subscriber]:
    with Subscriber(port, name, V5, topic_filter) as made:
        if not made.wait(lambda: made.is_subscribed, WAIT_SECONDS):
            raise BenchmarkError(f"{name}: no SUBACK")
        yield made


def _until_connected(broker: Subject, names: Sequence[str]) -> None:
    def stand(told: Mapping[str, str]) -> bool:
        return all(told.get(f"{name}/connected") == "1" for name in names)

    if not stand(read_sys(broker.port, "penstock/uplink/", stand, WAIT_SECONDS)):
        raise BenchmarkError(f"the uplinks {', '.join(names)} do not stand")


def _dropped(told: Mapping[str, str]) -> int:
    return sum(int(n) for name, n in told.items() if "_dropped/" in name)


def _poison(publisher: Flow, topic: str, kind: str, payload: bytes, qos: int) -> None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if kind == "tab":
        topic += "\t"
    elif kind == "large":
        payload = payload.ljust(LARGE_BYTES)
    elif kind == "properties":
        properties.UserProperty = [("k", str(number)) for number in range(N_PROPERTIES)]
    publisher.client.publish(topic, payload, qos, retain=kind == "retained", properties=properties)


def poison(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Have messages that one end of an uplink does not take amid others, which it does."""
    n_poisons = effort.count(N_POISONS, least=len(CASES))
    n_good = n_lost = n_never = 0
    with ExitStack() as stack:
        cloud = stack.enter_context(subject(MOSQUITTO))
        cloud.configure(lines=LINES)
        cloud.start()
        down = {"down": [{"filter": "down/#", "when": "always"}]}
        five = _uplink(cloud.port, up=[{"filter": "five/#"}], **down)
        three = _uplink(cloud.port, up=[{"filter": "three/#"}], version="3.1.1")
        _configure(broker, "berlin", {"five": five, "three": three})
        broker.start()
        _until_connected(broker, ["five", "three"])
        readers, publishers = {}, {}
        for way in ("five", "three", "down"):
            ends = (broker, cloud) if way != "down" else (cloud, broker)
            publishers[way] = stack.enter_context(Flow(ends[0].port, f"to-{way}", V5))
            readers[way] = stack.enter_context(_subscribed(ends[1].port, f"of-{way}", f"{way}/#"))
        for number in range(n_poisons):
            way, kind = CASES[number % len(CASES)]
            poison_at = rng.randrange(N_GOOD + 1)
            awaited = set()
            for at in range(N_GOOD + 1):
                payload = b"%s 1 %d" % (way.encode(), number * (N_GOOD + 1) + at)
                topic, qos = f"{way}/x", rng.choice((1, 2))
                if at == poison_at:
                    _poison(publishers[way], topic, kind, payload, qos)
                    if kind != "retained":  # without the flag, it is taken
                        n_never += 1
                        continue
                else:
                    publishers[way].client.publish(topic, payload, qos)
                awaited.add(payload)
            readers[way].wait_for(awaited, WAIT_SECONDS)
            n_good += len(awaited)
            n_lost += len(awaited - readers[way].got.keys())
        told = read_sys(
            broker.port, "penstock/uplink/", lambda told: _dropped(told) >= n_never, WAIT_SECONDS
        )
    n_closed = sum(int(n) for name, n in told.items() if name.endswith("failures/closed"))
    return [
        Finding("messages that one end does not take", n_never),
        Finding("of these, not counted as dropped", abs(n_never - _dropped(told)), most=0),
        Finding("connections that the cloud has ended", n_closed),
        Finding("other messages", n_good),
        Finding("other messages lost", n_lost, most=0),
    ]


def lead_round(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Publish to sites whose uplinks lead round; count how often each message comes to each."""
    n_rings = effort.count(N_RINGS, least=len(RINGS))
    n_published = n_lost = most_at_home = most_by_one = most_by_two = 0
    for number in range(n_rings):
        links = RINGS[number % len(RINGS)]
        with ExitStack() as stack:
            sites = {
                name: broker if name == "a" else stack.enter_context(subject(PENSTOCK))
                for name in links
            }
            for name, site in sites.items():
                uplinks = {
                    other: _uplink(
                        sites[other].port,
                        up=[{"filter": "t/#"}],
                        down=[{"filter": "t/#", "when": "always"}],
                    )
                    for other in links[name]
                }
                _configure(site, name, uplinks)
                site.start()
            readers = {
                name: stack.enter_context(_subscribed(site.port, f"reader-{name}", "t/#"))
                for name, site in sites.items()
            }
            for name, site in sites.items():
                _until_connected(site, list(links[name]))
            home = rng.choice(sorted(links))
            publisher = stack.enter_context(Flow(sites[home].port, "publisher", V5))
            n_bytes = rng.choices((0, LARGE_BYTES), (9, 1), k=effort.count(N_ROUND, least=10))
            payloads = [(b"x 1 %d" % n).ljust(size) for n, size in enumerate(n_bytes)]
            for payload in payloads:
                publisher.client.publish(f"t/{rng.randrange(3)}", payload, rng.choice((1, 2)))
            n_published += len(payloads)
            for name, reader in readers.items():
                reader.wait_for(set(payloads), WAIT_SECONDS)
                n_lost += len(set(payloads) - reader.got.keys())
                while (n_before := reader.got.total()) < STORM * len(payloads) and reader.wait(
                    lambda r=reader, n=n_before: r.got.total() > n,  # type: ignore[misc]
                    QUIET_SECONDS,
                ):
                    pass
                most = max(reader.got.values(), default=0)
                if name == home:
                    most_at_home = max(most_at_home, most)
                elif len(links[name]) == 1:
                    most_by_one = max(most_by_one, most)
                else:
                    most_by_two = max(most_by_two, most)
        broker.stop()
    return [
        Finding("times that uplinks led round", n_rings),
        Finding("messages published", n_published),
        Finding("of these, missing at any site", n_lost, most=0),
        Finding("times that one came to its own site", most_at_home, most=1),
        Finding("to another one, of two or a ring", most_by_one, most=2),
        Finding("to another one, both ways round", most_by_two, most=6),
    ]


POISON: Final = Fault(
    "poison",
    "an uplink has messages that the cloud (mosquitto) or the site does not take, at QoS 1 and 2: "
    "a tab in the topic, too large, retained, too many properties; by MQTT 5 and 3.1.1",
    poison,
    (PENSTOCK,),
)
LOOPS: Final = Fault(
    "loops",
    "two sites have uplinks to each other, or three in a ring, one way round or both, for the same "
    "topics up and down",
    lead_round,
    (PENSTOCK,),
)
