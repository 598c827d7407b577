"""One connection of an uplink: when silence is its end."""

from __future__ import annotations

import pytest

from penstock.edge_proxy.uplink.cloud_connection import ConnectionEnd
from penstock.edge_proxy.uplink.packet_stream import Buffer
from tests.broker.serving import port_of, protocol_of, serving, until
from tests.edge_proxy.uplink.test_uplink import held_back, site, stands, uplink_of
from tests.helpers.wire import connected


async def test_a_cloud_that_says_nothing_is_noticed_by_the_time_that_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose process is stopped: its connections stay open. No wall clock has a say."""
    async with serving() as cloud, site(port_of(cloud), keep_alive_seconds=40) as edge:
        await stands(edge)
        uplink = uplink_of(edge)
        link = uplink._connection
        assert link is not None
        assert link.cloud.transport is not None
        link.cloud.transport.pause_reading()  # nothing that the cloud says arrives
        now = uplink.clock()
        for seconds, n_failures in ((59.0, 0), (61.0, 1)):
            monkeypatch.setattr(uplink, "clock", lambda at=now + seconds: at)
            link._look()
            assert link.ended.done() == bool(n_failures)
        monkeypatch.undo()
        await until(lambda: uplink.counts.failures == {"silent": 1})
        await until(lambda: uplink.counts.connections == 2)


async def test_a_message_that_takes_longer_than_the_keep_alive_is_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No PINGREQ can leave before its end; what TCP acknowledges of it is a sign of life.

    When the PINGREQ has arrived and is not answered, it is silence, whatever is acknowledged then.
    """
    spill = {"memory": {"store": "spill"}}  # then the payload goes up piece by piece
    async with (
        serving() as cloud,
        held_back(port_of(cloud), 1 << 40) as (port, _),
        site(port, spill, keep_alive_seconds=40, lanes=None) as edge,
        await connected(port_of(edge), "near") as near,
        await connected(port_of(cloud), "far") as far,
    ):
        await far.subscribe("up/#", 0)
        await stands(edge)
        uplink = uplink_of(edge)
        link = uplink._connection
        assert link is not None
        now = uplink.clock()
        monkeypatch.setattr(uplink, "clock", lambda: now)
        receive, n_pieces = link.receive, 0

        def receive_slowly(side: ConnectionEnd, data: Buffer) -> None:
            """Receive a piece of the message; a hundred of them take almost the longest silence."""
            nonlocal now, n_pieces
            receive(side, data)
            if link.relay.cloud.is_in_payload and side.name == "up":
                n_pieces += 1
                if n_pieces % 100 == 0:
                    now += 59.0
                    link._look()

        monkeypatch.setattr(link, "receive", receive_slowly)
        await near.publish("up/a", b"x" * 30_000_000)
        await until(lambda: n_pieces > 300)
        await until(lambda: link.relay.n_pongs == link.relay.n_pings)
        assert not link.ended.done()
        protocol_of(cloud, "berlin-cloud").transport.pause_reading()
        for _ in range(2):
            await near.publish("up/b", b"x" * 10_000)
            now += 59.0
            link._look()
        assert link.ended.done()
