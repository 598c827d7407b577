from __future__ import annotations

from contextlib import suppress

import pytest

from benchmarks.loads import wire
from benchmarks.loads.access import Access, publisher_id
from benchmarks.peers import PEERS, Options, running

BROKERS = ("penstock", "mosquitto")


@pytest.mark.parametrize("name", BROKERS)
def test_the_acl_file_decides_in_each_broker(name: str) -> None:
    """A row with an ACL file measures brokers that ask it: lines, patterns and denials."""
    with running(PEERS[name], Options(has_acl=True)) as peer:
        with pytest.raises(wire.WireError, match="CONNACK"):
            wire.open_client(peer.port, "nobody")
        with pytest.raises(wire.WireError, match="CONNACK"):
            Access(peer.port, has_users=True).open("stranger", "stranger")
        reader, _ = peer.access.open_subscriber(0)
        with reader:
            wire.subscribe(reader, "bench/#", 0)
            refused = ("bench/windowed/secret", "bench/bench-publisher-1/x", "bench/unnamed")
            allowed = ("bench/windowed/1", f"bench/{publisher_id(0)}/x", "bench/users/north/x")
            for topic in (*refused, *allowed):
                publisher, _ = peer.access.open_publisher(0)
                with publisher, suppress(ConnectionResetError):  # if a broker closes it sooner
                    publisher.sendall(wire.publish_packet(topic, b"here") + wire.DISCONNECT)
                    assert publisher.recv(1) == b""
            for topic in allowed:
                assert wire.receive_packet(reader) == wire.publish_packet(topic, b"here")


@pytest.mark.parametrize("name", BROKERS)
def test_durable_sessions_are_kept(name: str) -> None:
    """A row with durable sessions has clients whose sessions outlive their connections."""
    with running(PEERS[name], Options(is_durable=True)) as peer:
        first, accepted = peer.access.open_subscriber(0)
        with first:
            assert not accepted.session_present
            first.sendall(wire.DISCONNECT)
        again, accepted = peer.access.open_subscriber(0)
        with again:
            assert accepted.session_present
