"""Each step of serving a connection, on a virtual broker, which takes the same steps."""

from __future__ import annotations

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import PingResp
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.session import PUMP_MESSAGES
from tests.helpers.virtual import VirtualBroker, VirtualClient

MANY = 2 * PUMP_MESSAGES


class Watched(VirtualClient):
    """A client of which a test can see what it was served.

    Attributes:
        served: what was done, in order.
        takes_long: each call takes all the time that a turn has.
    """

    served: list[str]
    takes_long = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note a write."""
        super().write(data)
        self.served.append("write")

    def is_late(self, now: float) -> bool:
        """Answer as the test has set."""
        del now
        return self.takes_long

    def wait_for_turn(self) -> None:
        """Note that it waits."""
        super().wait_for_turn()
        self.served.append("wait")

    def close(self, connection: Connection) -> None:
        """Note the end."""
        super().close(connection)
        self.served.append("close")


def behind() -> tuple[VirtualBroker, Watched]:
    """Return a subscriber whose outbox takes more than one pump, and which is paused."""
    broker = VirtualBroker(Limits(receive_maximum=MANY, inflight_messages=MANY))
    client = broker.connect("behind")
    client.__class__ = Watched
    assert isinstance(client, Watched)
    client.served = []
    client.subscribe("t", 0)
    client.connection.pause_sending(broker.now)
    publisher = broker.connect("p")
    for n in range(MANY):
        publisher.publish("t", b"%d" % n)
    client.served.clear()
    return broker, client


def test_outbox_is_moved_on_while_there_is_time() -> None:
    """One call writes as often as there is something; nobody else waits meanwhile."""
    broker, client = behind()
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert client.payloads() == [b"%d" % n for n in range(MANY)]
    assert client.served.count("write") > 1
    assert "wait" not in client.served


def test_one_that_is_late_waits_for_its_turn_with_the_rest() -> None:
    """Between two of its writes others have theirs; nothing is lost or out of order."""
    broker, client = behind()
    client.takes_long = True
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert client.payloads() == [b"%d" % n for n in range(MANY)]
    assert client.served[:3] == ["write", "wait", "write"]


def test_one_without_room_is_neither_written_to_nor_in_line() -> None:
    """It is served again when its transport has room."""
    broker, client = behind()
    client.room_bytes = 1
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert client.served == ["write"]
    client.room_bytes = None
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert client.payloads() == [b"%d" % n for n in range(MANY)]


def test_what_is_written_before_the_end_comes_before_the_end() -> None:
    """A client reads why it is closed."""
    broker, client = behind()
    client.connection.resume_sending(broker.now)
    client.send_bytes(b"\x00\x00")
    assert client.served[-2:] == ["write", "close"]
    assert client.is_lost


def test_write_says_whether_a_rest_may_follow() -> None:
    """A connection with nothing left in `out` needs no further round."""
    broker, client = behind()
    client.connection.outgoing.out.append(b"\xd0\x00")
    client.connection.outgoing.out_bytes += 2
    assert not client.connection.outgoing.write_to(client.transport)
    assert client.take(PingResp) == PingResp()
    broker.settle()
