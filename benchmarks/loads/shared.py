"""The windowed load with a group that shares a subscription: each message goes to one member."""

from __future__ import annotations

from collections import Counter

from benchmarks.loads import wire
from benchmarks.loads.access import Access
from benchmarks.loads.windowed import Publisher, Subscriber, WindowedLoad, WindowedPlan
from benchmarks.rows.rates import Run


class Member(Subscriber):
    """A member of a group.

    It gets more or less than its share, so that its `remaining` may fall below 0: that of all
    members together is 0 in the end.
    """

    __slots__ = ("_group", "_id_at", "_positions")

    def __init__(
        self,
        access: Access,
        plan: WindowedPlan,
        number: int,
        payloads: list[bytes],
        group: Counter[int],
    ) -> None:
        """Connect and subscribe."""
        super().__init__(access, plan, number)
        self._group = group
        packets = [plan.packet(0, payload, 0) for payload in payloads]
        self._id_at = wire.read_publish(packets[0], version=plan.version).packet_id_at
        self._positions = {packet: position for position, packet in enumerate(packets)}
        self.least_bytes = len(packets[0])

    def read(self) -> None:
        """Compare what has come and answer it.

        Raises:
            wire.WireError: something else than the published messages came.
        """
        packets, self.rest = wire.whole_packets(self.receive())
        answers, at = [], self._id_at
        for packet in packets:
            position = self._positions.get(packet[:at] + bytes(2) + packet[at + 2 :])
            if position is None:
                raise wire.WireError(f"a member of the group read {packet[:16].hex(' ')}")
            self._group[position] += 1
            answers.append(bytes([wire.PUBACK, 2]) + packet[at : at + 2])
        self.received += len(packets)
        self.remaining -= len(packets)
        if answers:
            self.sock.sendall(b"".join(answers))


class SharedLoad(WindowedLoad):
    """A publisher and a group of subscribers, connected."""

    def _connect(self, access: Access) -> None:
        plan = self._plan
        payloads = plan.payloads()
        self._group: Counter[int] = Counter(dict.fromkeys(range(len(payloads)), 0))
        for number in range(plan.members):
            self._add(Member(access, plan, number, payloads, self._group))
        self._add(Publisher(access, plan, 0, payloads))

    def run(self, messages: int) -> Run:
        """Publish so many messages, and complete all handshakes.

        Raises:
            wire.WireError: a broker answered something else than it should, or the group got one
                message more often than another.
        """
        run = super().run(messages)
        counts = self._group.values()
        if not run.lost and max(counts) - min(counts) > 1:
            raise wire.WireError("the group got a message twice, and another not at all")
        return run
