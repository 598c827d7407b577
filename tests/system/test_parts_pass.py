"""Small messages pass a message in parts on a slow link, by the defaults of an uplink."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import Publish
from penstock.broker.server import Server
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.uplink.test_uplink import deliver, site, stands, take_message, uplink_of
from tests.helpers.process import anonymous_policy
from tests.helpers.slow_link import relay_to
from tests.helpers.wire import connected

FIRMWARE = bytes(600_000)


def is_asked(cloud: Server, client_id: str) -> bool:
    """Say whether the cloud was asked for both filters by one connection."""
    session = cloud.core.sessions.get(client_id)
    return session is not None and len(session.subscriptions) >= 2


@pytest.mark.parametrize(
    ("way", "keys"),
    [("down", {}), ("up", {}), ("up", {"version": "3.1.1"}), ("up", {"lanes": None})],
)
async def test_a_command_passes_parts(way: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """Each way by two connections; up by a single one, too, as parts of other topics wait."""
    sender = {"parts": {"split": ["x/firmware/#"], "spool": str(tmp_path / "sender.db")}}
    taker = {"parts": {"spool": str(tmp_path / "taker.db")}}
    of_cloud, of_site = (sender, taker) if way == "down" else (taker, sender)
    when = {"when": "always"} if way == "down" else {}
    rules = [{"filter": "x/firmware/#", "parts": True, **when}, {"filter": "x/stop/#", **when}]
    keys = {"up": [], "down": [], **keys, way: rules}
    with ExitStack() as stack:
        async with serving(plugins=anonymous_policy(of_cloud)["plugins"]) as cloud:
            link = stack.enter_context(relay_to(port_of(cloud)))
            async with site(link.port, of_site, **keys) as edge:
                await stands(edge)
                source, target = (cloud, edge) if way == "down" else (edge, cloud)
                async with (
                    await connected(port_of(source), "source") as giver,
                    await connected(port_of(target), "target") as near,
                ):
                    await near.subscribe("x/#", 1)
                    ids = [one.client_id for one in uplink_of(edge).lanes] if way == "down" else []
                    await until(lambda: all(map(partial(is_asked, cloud), ids)))
                    link.switch("bad")
                    await deliver(giver, Publish("x/firmware/a", FIRMWARE, qos=1, packet_id=1))
                    for _ in range(2):
                        await deliver(giver, Publish("x/stop/a", b"now", qos=1, packet_id=2))
                        assert (await take_message(near)).topic == "x/stop/a"
                    assert (await take_message(near)).payload == FIRMWARE
