"""Lanes: two sessions of one subscriber, between which the order of each topic is kept.

Theory of operation. A client that has two connections, most often one for each size class, names
the other one in the CONNECT of each, by `LANE_PROPERTY`. From then on a message does not leave for
one of them while an earlier one of its topic waits for the other, or is unacknowledged by it
(`penstock.broker.outbox.lane_order`). The CONNACK has the property, too: with the name if that
client has a session, and empty if it has none yet.

A lane that says in CONNECT that it takes what is *large*, by `SIZE_PROPERTY`, needs no
subscriptions: large messages that the other lane has subscribed to go to it. What it has goes back
to the other one when its session ends, or when the other one connects as a client without lanes.
The other lane may say before, by the value ``small``, that large messages are to wait for it.
A client of MQTT 3.1.1 cannot name its lane; that is one which names it and takes its large
messages, and which is closed when the client connects: it comes again.
For No Local and access control, what comes on such a lane comes from the other one.
Each CONNACK has `LARGE_ABOVE_PROPERTY`, so that a client can tell which of its own messages are
large.

A lane that says in CONNECT that it *yields*, by `YIELDS_PROPERTY`, is that of large messages: what
is sent on it is paced while the other one is connected, so that the queue before the narrowest link
stays short (`penstock.broker.network.pacing`).

A lane that is away for `lane_takeover_seconds` while the other one is connected is taken over: what
waits for it goes to the other. After `lane_give_up_seconds`, what it has not acknowledged holds
back no later message any more; where it has taken it from the other lane, it gives it back.

Only sessions of one user can be lanes, and a client that is connected must have named the other
one: otherwise any client could hold back another's messages. A session that was restored is a lane
of the first client that names it, as nobody has told yet whom it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.message import LANE_PROPERTY
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.outbox.lane_order import LaneOrder, join_lanes
from penstock.broker.routing.subscriber import Subscriber

if TYPE_CHECKING:
    import logging

    from penstock.broker.config.mqtt_options import MqttOptions
    from penstock.broker.counters import Counters
    from penstock.broker.link import Link
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.outbox.message_counts import Ledger
    from penstock.broker.routing.topic_tree import Subscription
    from penstock.broker.timers import Timer, Timers


LargeOf: TypeAlias = Literal["this", "other"] | None
"""The lane, of two, that takes the large messages of both, as one of them sees it."""


class Pacer(Protocol):
    """The pacer of a lane's connection."""

    def sent(self) -> None:
        """Look at the connection from now on: something is sent on it."""

    def stop(self) -> None:
        """Let it send at full rate."""


class LaneSession(Subscriber, Protocol):
    """A session, as its lane sees it.

    Attributes:
        ledger: the account of this subscriber.
        link: what is known of the path to it.
        resend: what was inflight when the last connection ended, still to be sent again.
        subscriptions: by topic filter.
    """

    ledger: Ledger
    link: Link
    resend: deque[Delivery]
    subscriptions: dict[str, Subscription]


def lane_of(session: LaneSession, timers: Timers) -> LaneOrder:
    """Return what keeps the order of topics for a session; to be joined at once."""
    session.is_direct = False

    def wake() -> None:
        if session.client is not None:
            session.outgoing.want_pump()

    def later(action: Callable[[], None]) -> None:
        timers.at(0.0, lambda _now: action())

    return LaneOrder(session.outbox, session.inflight, session.ledger, wake=wake, later=later)


class Lanes:
    """The lanes of a broker.

    Attributes:
        has_lanes: a client has named another one as its lane.
    """

    def __init__(
        self,
        sessions: Callable[[str], LaneSession | None],
        close: Callable[[Any, float], object],
        timers: Timers,
        counters: Counters,
        options: MqttOptions,
        logger: logging.Logger,
    ) -> None:
        """Begin without lanes; `sessions` finds the session of a Client Identifier."""
        self.change(options)
        self._session_of = sessions
        self._close = close
        self._broker_timers = timers
        self._counters = counters
        self._logger = logger
        self._others: dict[str, str] = {}
        self._joined: dict[str, str] = {}
        self._timers: dict[str, Timer] = {}
        self._yielding: set[str] = set()
        self._takers: dict[str, str] = {}
        self._pacers: dict[str, Pacer] = {}
        self.has_lanes = False

    def change(self, options: MqttOptions) -> None:
        """Take the options that say when a lane is taken over, for those that go away later."""
        self._takeover_seconds = options.lane_takeover_seconds
        self._give_up_seconds = options.lane_give_up_seconds

    def asked(
        self, client_id: str, username: str | None, user_properties: Sequence[tuple[str, str]]
    ) -> str:
        """Return which other lane a CONNECT names; "" for none, or for one that cannot be."""
        names = [value for name, value in user_properties if name == LANE_PROPERTY]
        if not names:
            return ""
        why = ""
        other = self._session_of(names[0])
        if len(names) > 1:
            why = f"read {len(names)} of them; allowed: one"
        elif not names[0] or names[0] == client_id or names[0].startswith(LOCAL_CLIENT_PREFIX):
            why = f"read {names[0]!r}; allowed: the Client Identifier of another client"
        elif other is not None and other.username != username:
            why = f"read {names[0]!r}; allowed: a client of the same user"
        elif other is not None and self._is_lane_of_third(names[0], client_id):
            why = f"read {names[0]!r}; allowed: a client that names no third one"
        if why:
            self._counters.user_properties_ignored += 1
            self._logger.info(
                "client %s: CONNECT: user property %s: %s; ignored", client_id, LANE_PROPERTY, why
            )
            return ""
        return names[0]

    def _is_lane_of_third(self, other_id: str, client_id: str) -> bool:
        third = self._others.get(other_id, client_id)
        return third != client_id and self._session_of(third) is not None

    def connected(
        self,
        session: LaneSession,
        other_id: str,
        now: float,
        *,
        yields: bool = False,
        large: LargeOf = None,
    ) -> None:
        """Take note of a client that has connected; `other_id` is what `asked` has said.

        If it `yields`, what is sent to it yields to the other lane. `large` is the lane that takes
        the large messages of both, this one or the other; None where each has subscriptions of its
        own.
        """
        if not (self.has_lanes or other_id or yields):
            return
        self.has_lanes = True
        client_id = session.client_id
        self._stop_pacing(session)
        before = self._joined.get(client_id, "")
        took_large = self._takes(client_id) or self._takes(before)
        if before != other_id or (took_large and large is None):
            self._part(session)
        (self._yielding.add if yields else self._yielding.discard)(client_id)
        self._others.pop(client_id, None)
        if not other_id:
            lane = self._session_of(self._takers.get(client_id, ""))
            if lane is not None and session.version < MQTT_5:
                # It has no way to say whether it still has this lane, which comes again if it has.
                self._close(lane, now)
            return
        self._others[client_id] = other_id
        if large is not None:
            taker, giver = (client_id, other_id) if large == "this" else (other_id, client_id)
            self._takers[giver] = taker
            if large == "this" and not session.subscriptions:
                session.link.gets_small = False  # nothing of its own brings any
        other = self._session_of(other_id)
        if other is not None and self._may_join(session, other):
            for one in (session, other):
                self._await_no_more(one)
            join_lanes(lane_of(session, self._broker_timers), lane_of(other, self._broker_timers))
            self._joined |= {client_id: other_id, other_id: client_id}
        elif other is None and large == "other" and session.outbox.order is None:
            lane_of(session, self._broker_timers).await_other()
            self._timers[client_id] = self._broker_timers.at(
                now + self._takeover_seconds, lambda _at: self._await_no_more(session)
            )
        self._look(session, now)

    def _takes(self, client_id: str) -> bool:
        """Say whether a lane takes the large messages of the other one."""
        return self._takers.get(self._others.get(client_id, "")) == client_id

    def _may_join(self, session: LaneSession, other: LaneSession) -> bool:
        named = self._others.get(other.client_id)
        if named is None and other.version < MQTT_5 and self._takes(session.client_id):
            named = self._others[other.client_id] = session.client_id  # it cannot do so itself
        return (named == session.client_id or other.client is None) and not any(
            one.outbox.order is not None and not one.outbox.order.awaits for one in (session, other)
        )

    def _await_no_more(self, session: LaneSession) -> None:
        order = session.outbox.order
        if order is not None and order.awaits:
            self._cancel(session.client_id)
            order.leave()

    def _part(self, session: LaneSession, *, has_ended: bool = False) -> None:
        """End the order of two lanes, if a session is one of them; an ended one takes nothing."""
        other_id = self._joined.pop(session.client_id, "")
        other = self._session_of(other_id)
        for one, partner in ((session, other), (other, session)):
            if one is None or partner is None:
                continue
            self._stop_pacing(one)
            is_there = partner is other or not has_ended
            if is_there and self._takes(one.client_id) and one.username == partner.username:
                one.resend.clear()
                if one.outbox.order is not None:
                    one.outbox.order.give_back()
        if session.outbox.order is not None:
            session.outbox.order.leave()
        self._joined.pop(other_id, None)
        for client_id in (session.client_id, other_id):
            self._cancel(client_id)

    def cleared(self, session: LaneSession) -> None:
        """Take note of a session that its client wants to end: nothing of it goes back."""
        self._takers.pop(self._others.get(session.client_id, ""), None)

    def connection_lost(self, session: LaneSession, now: float) -> None:
        """Take note of a client that has gone."""
        if self.has_lanes and session.outbox.order is not None:
            self._look(session, now)

    def ended(self, session: LaneSession) -> None:
        """Take note of a session that ends, with its messages still in their places."""
        if not self.has_lanes:
            return
        self._part(session, has_ended=True)
        if self._takes(session.client_id):
            del self._takers[self._others[session.client_id]]
        if self._session_of(self._takers.get(session.client_id, "")) is None:
            self._takers.pop(session.client_id, None)
        self._others.pop(session.client_id, None)
        self._yielding.discard(session.client_id)

    def _look(self, session: LaneSession, now: float) -> None:
        """See which of two lanes the other one is to take over."""
        other = self._session_of(self._joined.get(session.client_id, ""))
        if other is None:
            return
        for one, partner in ((session, other), (other, session)):
            order = one.outbox.order
            if order is None:
                continue
            self._pace(one, order, is_alone=partner.client is None)
            order.is_away = one.client is None
            if one.client is not None or partner.client is None:
                self._cancel(one.client_id)
                order.take_over(is_away=False)
            elif one.client_id not in self._timers and not order.is_taken_over:
                self._timers[one.client_id] = self._broker_timers.at(
                    now + self._takeover_seconds, partial(self._take_over, one)
                )
        for one, partner in ((session, other), (other, session)):
            if one.outbox.order is not None:
                one.outbox.order.give_large(gives=self._takes(partner.client_id))

    def _pace(self, session: LaneSession, order: LaneOrder, *, is_alone: bool) -> None:
        """Pace a lane that yields while both are connected; alone, it has all messages."""
        client_id = session.client_id
        if client_id not in self._yielding or session.client is None or is_alone:
            self._stop_pacing(session)
        elif client_id not in self._pacers:
            pacer: Pacer = session.outgoing.served.new_pacer(self._count_paced)
            self._pacers[client_id] = pacer
            order.on_left = pacer.sent
            pacer.sent()  # something may be under way

    def _count_paced(self) -> None:
        self._counters.lanes_paced += 1

    def _stop_pacing(self, session: LaneSession) -> None:
        pacer = self._pacers.pop(session.client_id, None)
        if pacer is not None:
            pacer.stop()
        if session.outbox.order is not None:
            session.outbox.order.on_left = None

    def _take_over(self, session: LaneSession, now: float) -> None:
        order = session.outbox.order
        if order is None:
            return
        self._logger.info(
            "client %s: away for %g s: its waiting messages go to its other lane, %s",
            session.client_id,
            self._takeover_seconds,
            self._joined.get(session.client_id, ""),
        )
        order.take_over(is_away=True)
        self._timers[session.client_id] = self._broker_timers.at(
            now + self._give_up_seconds - self._takeover_seconds, lambda _at: self._give_up(session)
        )

    def _give_up(self, session: LaneSession) -> None:
        order = session.outbox.order
        if order is not None and self._takes(session.client_id):
            order.give_back()
        elif order is not None and len(session.inflight):
            self._logger.warning(
                "client %s: away for %g s: later messages no longer wait for %d of their "
                "topics that it has not acknowledged",
                session.client_id,
                self._give_up_seconds,
                len(session.inflight),
            )
            order.give_up()

    def _cancel(self, client_id: str) -> None:
        timer = self._timers.pop(client_id, None)
        if timer is not None:
            timer.cancel()
