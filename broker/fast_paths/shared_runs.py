"""Runs for the members of a shared subscription, where no one else gets their messages.

Theory of operation. While its members can be sent a message at once, they take turns
(`penstock.broker.routing.shared_subscriptions`). If each of them has room for its part of a run, it
is known before the first message who gets which: message for message in turn. So each member is
sent its part as a run of its own, and nobody has to be chosen for single messages.

Access control is asked once for each member and topic. `FastCore` remembers its answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.sessions.session import DIRECT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.fast_paths.fast_core import FastCore, FastSession
    from penstock.broker.fast_paths.message_run import MessageRun, Segment
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Plan


class Group(tuple["FastSession", ...]):  # noqa: SLOT001 (a tuple takes no slots)
    """The sessions of a plan that is a shared subscription: it is empty, and asked for its members.

    Attributes:
        share: the subscription.
        takers: the sessions that get the next messages, in turn; of the last `prepare`.
    """

    share: SharedSubscription
    takers: list[FastSession]

    @classmethod
    def of(cls, core: FastCore, plan: Plan, version: int) -> Group:
        """Return the group of a plan with one shared subscription, and no other recipient."""
        group = cls()
        group._core = core
        group.share = plan.shares[0]
        group._plan = plan
        group._is_5 = version == MQTT_5
        group.takers = []
        group._places = []
        return group

    _core: FastCore
    _plan: Plan
    _is_5: bool
    _places: list[int]

    def prepare(self, qos: int, n_messages: int, n_bytes: int, largest: int) -> int:
        """Find out who gets the next messages, and return of how many that is known.

        Args:
            qos: of all.
            n_messages: the most that come, at least 1.
            n_bytes: the most that they have in all.
            largest: bytes of the largest packet.

        Returns:
            0 where a member is to be chosen for each, or is not sent the bytes that came.
        """
        share = self.share
        if share.n_durable or share.sizes:
            return 0
        members = share.members
        n_members = len(members)
        at = share.turn
        takers: list[FastSession] = []
        places: list[int] = []
        least_room = n_messages
        for _ in range(n_members):
            if at >= n_members:
                at = 0
            member = members[at]
            at += 1
            session = cast("FastSession", member.session)
            if not session.sends_at_once(min(qos, member.qos)):
                continue
            is_allowed = self._core.may_receive(member, self._plan)
            if is_allowed is False:
                continue
            sender = session.sender
            outgoing = session.outgoing
            if (
                is_allowed is None
                or sender is None
                or member.qos < qos
                or member.subscription_ids
                or (session.version == MQTT_5) != self._is_5
                or largest > outgoing.copy_maximum
                or n_bytes + outgoing.out_bytes >= DIRECT_BYTES
            ):
                return 0
            if qos:
                inflight = session.inflight
                if n_bytes + inflight.n_bytes >= sender.send_quota_bytes:
                    return 0
                least_room = min(least_room, sender.send_quota - inflight.n_messages)
            takers.append(session)
            places.append(at)
            if len(takers) == n_messages:
                break
        self.takers, self._places = takers, places
        return min(n_messages, len(takers) * least_room)

    def took(self, n_messages: int) -> None:
        """Give the turn to the member behind the one that got the last of some messages."""
        self.share.turn = self._places[(n_messages - 1) % len(self._places)]

    def parts(self, run: MessageRun) -> Iterator[tuple[FastSession, MessageRun]]:
        """Return each member with its part of a run, of which `prepare` knows all messages."""
        takers = self.takers
        n_takers = min(len(takers), run.n_messages)
        run.share = self.share.topic_filter
        self.took(run.n_messages)
        if n_takers == 1:
            yield takers[0], run
            return
        pieces: list[list[bytes]] = [[] for _ in range(n_takers)]
        segments: list[list[Segment]] = [[] for _ in range(n_takers)]
        sizes = [0] * n_takers
        index = 0
        for n_messages, start, size, packet_id_at, payload_bytes, topic in run.segments:
            stop = start + n_messages * size
            for first in range(min(n_messages, n_takers)):
                taker = (index + first) % n_takers
                places = range(start + first * size, stop, n_takers * size)
                pieces[taker] += [run.data[place : place + size] for place in places]
                at = sizes[taker]
                id_at = at + packet_id_at - start
                segments[taker].append((len(places), at, size, id_at, payload_bytes, topic))
                sizes[taker] += len(places) * size
            index += n_messages
        for session, data, own in zip(takers, pieces, segments, strict=False):
            yield session, run.part(b"".join(data), own)

    def copy(self, run: bytes, n_messages: int) -> None:
        """Copy QoS 0 packets to the members, of which `prepare` knows who gets them."""
        takers = self.takers
        pieces: list[list[bytes]] = [[] for _ in takers]
        position = 0
        for index in range(n_messages):
            start, length = read_remaining_length(run, position)
            pieces[index % len(takers)].append(run[position : start + length])
            position = start + length
        turn = self._core.turn
        for session, own in zip(takers, pieces, strict=True):
            outgoing = session.outgoing
            outgoing.out.append(b"".join(own))
            outgoing.out_bytes += sum(map(len, own))
            if not outgoing.is_touched:
                turn.write_soon(outgoing)
            session.n_direct += len(own)
        self.took(n_messages)
