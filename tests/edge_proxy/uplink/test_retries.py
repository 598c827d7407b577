"""When an uplink connects again."""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock.broker.mqtt.packets import ConnAck, Connect
from penstock.edge_proxy.uplink.config import ReconnectKeys
from penstock.edge_proxy.uplink.retries import Retries
from tests.broker.serving import until
from tests.edge_proxy.uplink.test_uplink import site, uplink_of
from tests.helpers.scripted import ScriptedBroker


class Longest(random.Random):
    """Shortens no wait."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper bound."""
        del a
        return b


def test_waits_double_up_to_the_longest_and_begin_anew() -> None:
    """After a success, the first one again."""
    retries = Retries(ReconnectKeys(1.0, 6.0, 30.0), Longest())
    assert [retries.wait_seconds(is_suspicious=False) for _ in range(5)] == [1, 2, 4, 6, 6]
    retries.succeeded()
    assert retries.wait_seconds(is_suspicious=False) == 1


def test_waits_stay_short_while_the_uplink_finds_out_what_is_refused() -> None:
    """Nothing passes meanwhile."""
    retries = Retries(ReconnectKeys(1.0, 60.0, 30.0), Longest())
    assert [retries.wait_seconds(is_suspicious=True) for _ in range(4)] == [1, 2, 2, 2]


def test_a_connection_that_has_stood_for_long_is_stable() -> None:
    """An attempt that was not accepted is not, however long it has taken."""
    retries = Retries(ReconnectKeys(1.0, 60.0, 30.0), Longest())
    assert retries.is_stable(30.0, was_accepted=True)
    assert not retries.is_stable(29.0, was_accepted=True)
    assert not retries.is_stable(30.0, was_accepted=False)


def test_short_connections_are_counted_until_one_is_not() -> None:
    """Attempts that fail are no connections."""
    retries = Retries(ReconnectKeys(), Longest())
    for _ in range(3):
        retries.ended(9.0, was_accepted=True)
    assert retries.n_short == 3
    retries.ended(9.0, was_accepted=False)
    assert retries.n_short == 0


async def flags_of_wills(version: str, answers: Sequence[bool]) -> list[bool]:
    """Accept a connection or close it at its CONNECT, and return whether its will is retained."""
    flags = []
    async with ScriptedBroker() as cloud, site(cloud.port, version=version, lanes=None) as edge:
        for is_accepted in answers:
            peer = await cloud.connected()
            peer.version = 5 if version == "5" else 4
            connect = await peer.receive()
            assert isinstance(connect, Connect)
            if connect.clean_start:  # it ends the session of before
                peer.send(ConnAck())
                await peer.receive_end()
                peer = await cloud.connected()
                peer.version = 5 if version == "5" else 4
                connect = await peer.receive()
                assert isinstance(connect, Connect)
            assert connect.will is not None
            flags.append(connect.will.retain)
            n_connections = uplink_of(edge).counts.connections
            if is_accepted:
                peer.send(ConnAck())
                await until(lambda n=n_connections: uplink_of(edge).counts.connections > n)  # type: ignore[misc]
            await peer.close()
    return flags


async def test_a_broker_that_was_only_ill_gets_a_retained_will_again() -> None:
    """Connections closed at CONNECT may have any cause: the flag is left out now and then only.

    Never again where the address has once accepted a retained will.
    """
    answers = (False, False, False, False, False, True, False, True, True, False, False, False)
    never, again = [True, True, False], [True, True, False]
    flags = await flags_of_wills("3.1.1", answers)
    assert flags == [*never, *again, True, False, True, True, True, True]


async def test_mqtt_5_gets_a_retained_will_unless_a_reason_code_refuses_it() -> None:
    """A load balancer without a server closes connections, too."""
    assert await flags_of_wills("5", (False, False, False, True)) == [True] * 4
