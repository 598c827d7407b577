"""What a client in the broker's process is told, and when what it expects fails."""

from __future__ import annotations

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.local_protocol import LocalProtocol
from tests.broker.network.test_in_process import local_clients
from tests.broker.serving import serving, until

CONNACK = PacketType.CONNACK << 4


class GoneError(PenstockError):
    """The connection has ended."""


class Plain(LocalProtocol):
    """Takes what comes."""

    lost_error = GoneError


async def test_what_is_expected_fails_at_the_end_of_the_connection() -> None:
    """What is expected after that fails at once; the error says why the broker has ended it."""
    async with serving() as server:
        client, wrong = Plain(), Plain()
        for one, client_id in ((client, "$uplink/a"), (wrong, "$uplink/b")):
            accepted = one.expect(CONNACK, 0)
            local_clients(server).connect(one)
            one.transport.write(write_packet(Connect(client_id, keep_alive=0), MQTT_5))
            assert await accepted == 0
        again = wrong.expect(CONNACK, 0)
        wrong.transport.write(write_packet(Connect("$uplink/b"), MQTT_5))
        with pytest.raises(GoneError, match="protocol error"):
            await again
        later = client.expect(PacketType.PUBACK << 4, 1)
        client.disconnect()
        await until(lambda: client.is_lost)
        for answer in (later, client.expect(PacketType.PUBACK << 4, 2)):
            with pytest.raises(GoneError, match="the connection has ended"):
                await answer
        client.disconnect()
