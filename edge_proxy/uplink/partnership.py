"""Coordinates one lane of an uplink with the other one.

Theory of operation. Each lane is an `Uplink`, and has a `Partnership`. When a lane is disconnected
while the other one is connected, the other one takes it over: after a while, or at once where the
cloud's broker refuses it (`SecondConnection`). What the lane has sent and the cloud has not
acknowledged waits for its session. Where the session cannot come back, the other lane sends it.

An uplink with one connection has a partnership, too, which does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from penstock.edge_proxy.uplink.lanes import LanesKeys, SecondConnection
from penstock.edge_proxy.uplink.schedule_and_budget import LOOK_SECONDS
from penstock.edge_proxy.uplink.subscriptions import NOTHING, Classes, join_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.edge_proxy.uplink.packet_relay import PacketRelay
    from penstock.edge_proxy.uplink.suspects import SentItem
    from penstock.edge_proxy.uplink.uplink import Uplink

MUTUAL_SECONDS: Final = 10.0
"""A connection that ends so soon after the other one was accepted may have been ended by it."""

ECHO: Final = (
    "rules of up and down have topics in common, and the broker would send what comes on one of "
    "two back on the other"
)
"""Why an uplink has one connection where rules of both directions overlap."""

JITTER_SECONDS: Final = 1.0
"""The end of one connection may be noticed so long before the CONNACK of the other one comes."""


class Partnership:
    """One lane, and what it knows of the other.

    Attributes:
        second: whether the cloud's broker accepts this lane; None for a lane that is not optional.
        accepted_at: monotonic seconds at which the cloud's broker has last accepted it.
    """

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self.second = SecondConnection() if uplink.lane.is_optional else None
        self.accepted_at = self._ended_at = -math.inf
        self._taking: asyncio.TimerHandle | None = None
        self._is_told_of_down = False

    @property
    def other(self) -> Uplink | None:
        """The other lane; None where there is one alone."""
        return next((lane for lane in self._uplink.lanes if lane is not self._uplink), None)

    @property
    def is_refused(self) -> bool:
        """Whether it is an optional lane that the cloud's broker does not accept."""
        return self.second is not None and bool(self.second.refused)

    @property
    def why_one(self) -> str:
        """Why all messages pass by one connection, in words; "" where there are two."""
        seconds = (lane.partnership.second for lane in self._uplink.lanes)
        refused = next((one.refused for one in seconds if one is not None), "")
        return f"one connection, not two: {refused}" if refused else ""

    def may_connect_in(self) -> float:
        """Return for how many seconds this lane has to wait for the other one."""
        if self.second is None or self._uplink.lane.leaves:
            return 0.0
        if self.other is None or not self.other.counts.connected or self.other.has_echo:
            return LOOK_SECONDS
        return self.second.wait_seconds(self._uplink.clock())

    def stop(self) -> None:
        """Cancel a takeover that has not begun."""
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    # -- connections -----------------------------------------------------------------------------

    def accepted(self, relay: PacketRelay) -> None:
        """Note that the cloud's broker has accepted this lane."""
        self.accepted_at = self._uplink.clock()
        if self.second is not None:
            self.second.accepted()
        other = self.other
        if other is None:
            return
        theirs = other.partnership
        if theirs.second is not None:
            theirs.second.other_accepted()
            if self._uplink.has_echo:
                theirs.second.give_up(ECHO, self.accepted_at)
                theirs.do_without()
        other.retry_now()
        if relay.lanes_are_kept and not relay.has_other_lane and not other.counts.connected:
            other.subscriptions.cloud_has_lost()
        seconds = self._ended_at - theirs.accepted_at
        is_mutual = bool(other.counts.connected) and -JITTER_SECONDS < seconds < MUTUAL_SECONDS
        for one in (self, theirs):
            if one.second is not None:
                name = self._uplink.lane.name
                one.second.came_back(name, is_mutual=is_mutual, now=self.accepted_at)
                if one.second.is_other:
                    one.leave_soon()
                    one.do_without()

    def ended(self, reason: str, told: str, *, was_accepted: bool) -> None:
        """Note that a connection of this lane has ended, or that an attempt has failed."""
        now = self._uplink.clock()
        if was_accepted:
            self._ended_at = now
        elif self.second is not None:
            self.second.failed(reason, told, now)
        self.do_without()

    def do_without(self) -> None:
        """Give all messages to the other lane where the cloud's broker refuses this one."""
        uplink, second, other = self._uplink, self.second, self.other
        if second is None or not second.refused or other is None:
            return
        if told := second.to_tell():
            uplink.logger.warning(
                "uplink %s: one connection to %s, not two: %s; small messages pass before large "
                "ones (docs/how-to/edge.md, Two lanes)",
                other.name,
                uplink.address,
                told,
            )
        self.look_at_takeover()
        if (other.has_new_session or second.is_other) and not uplink.counts.connected:
            self._hand_over_all()  # no broker has a session of this lane

    def not_taken(self, relay: PacketRelay) -> None:
        """Hand messages over that the cloud's broker does not let this lane publish."""
        uplink, second = self._uplink, self.second
        assert second is not None  # noqa: S101 (else there are none)
        for packet_id, topic in relay.not_taken:
            if not second.refused:  # of several on their way, the first one is told
                second.give_up(f"it may not publish to {topic!r}, says the broker", uplink.clock())
            uplink.local_clients.hand_over(uplink.up_id, packet_id)
        relay.not_taken.clear()
        self.do_without()
        self.leave_soon()

    def hand_over(self, refused: SentItem) -> bool:
        """Hand a message over at which the cloud's broker ends this lane's connection.

        Returns:
            False where this lane is not an optional one.
        """
        uplink, second = self._uplink, self.second
        if second is None:
            return False
        second.give_up(f"the broker ends it at {refused}", uplink.clock())
        uplink.local_clients.hand_over(uplink.up_id, refused.packet_id)
        self.do_without()
        return True

    def leave_soon(self) -> None:
        """Disconnect this lane, which is refused, once nothing is unacknowledged on it."""
        uplink = self._uplink
        is_other = self.second is not None and self.second.is_other
        if is_other or not uplink.local_clients.waiting(uplink.up_id):
            uplink.leave("there is one connection")

    # -- takeover --------------------------------------------------------------------------------

    @property
    def _keys(self) -> LanesKeys:
        """The keys under `lanes`; a lane that is no longer configured has the defaults."""
        return self._uplink.keys.lanes or LanesKeys()

    def look_at_takeover(self) -> None:
        """Schedule, begin or end the takeover of this lane by the other one."""
        uplink, other = self._uplink, self.other
        if other is None:
            return
        counts = uplink.counts
        is_due = bool(other.counts.connected) and (not counts.connected or self.is_refused)
        if is_due and self.is_refused and not counts.taken_over:
            self.stop()
            self._let_take_over()
        elif is_due and not counts.taken_over and self._taking is None:
            seconds = self._keys.takeover_seconds
            self._taking = asyncio.get_running_loop().call_later(seconds, self._let_take_over)
        elif not is_due:
            self.stop()
            if counts.taken_over:
                counts.taken_over = 0
                uplink.local_clients.take_over(uplink.up_id, is_away=False)
                if not self.is_refused:
                    uplink.logger.warning(
                        "uplink %s: what comes from now on waits for it", uplink.name
                    )

    def _let_take_over(self) -> None:
        uplink, other = self._uplink, self.other
        self._taking = None
        uplink.counts.taken_over = 1
        uplink.counts.takeovers += 1
        uplink.local_clients.take_over(uplink.up_id, is_away=True)
        seconds = self._keys.give_up_seconds
        if not self.is_refused:
            seconds -= self._keys.takeover_seconds
            uplink.logger.warning(
                "uplink %s: not connected: what waits to go up goes by %s",
                uplink.name,
                "" if other is None else other.name,
            )
        self._taking = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Stop later messages from waiting for what is unacknowledged on this lane."""
        uplink = self._uplink
        if self.is_refused:
            if not uplink.counts.connected:
                self._hand_over_all()
            return
        n_messages = uplink.local_clients.give_up_order(uplink.up_id)
        if n_messages:
            uplink.counts.order_given_up += n_messages
            uplink.logger.warning(
                "uplink %s: still not connected: later messages of the topics of %d that are "
                "unacknowledged wait for these no more",
                uplink.name,
                n_messages,
            )

    def _hand_over_all(self) -> None:
        """Hand over what is unacknowledged on this lane, which does not come back."""
        uplink = self._uplink
        n_messages = uplink.local_clients.hand_over(uplink.up_id)
        if n_messages:
            uplink.logger.warning(
                "uplink %s: %d messages that are unacknowledged on the second connection go up "
                "by the other one; the cloud's broker may have them already",
                uplink.name,
                n_messages,
            )

    # -- what comes down -------------------------------------------------------------------------

    def classes_down(self, relay: PacketRelay) -> Classes:
        """Return what is to come down on this lane while both are connected.

        Where the cloud's broker keeps no order across lanes, or they are connected to two brokers,
        everything comes on the lane of small messages.
        """
        uplink, other = self._uplink, self.other
        sizes = uplink.lane.sizes
        if sizes is None or other is None:
            return None
        of_one_lane: Classes = NOTHING if uplink.lane.name else None
        if relay.lanes_are_kept:
            self._is_told_of_down = False
            is_elsewhere = (
                other.counts.connected and other.connected_address != uplink.connected_address
            )
            return of_one_lane if is_elsewhere else sizes
        if not self._is_told_of_down:
            self._is_told_of_down = True
            # A warning for those who have asked for two lanes; others lose nothing.
            is_asked_for = self.second is None and other.partnership.second is None
            uplink.logger.log(
                logging.WARNING if is_asked_for else logging.INFO,
                "uplink %s: %s takes no subscriptions of one size class that keep the order of "
                "topics, as Penstock does: %s",
                uplink.name,
                uplink.address,
                "nothing comes down on this lane"
                if uplink.lane.name
                else "all messages come down on this lane",
            )
        return of_one_lane


def join_uplinks(lanes: Sequence[Uplink]) -> None:
    """Make uplinks the lanes of one; a single one is an uplink without lanes."""
    for lane in lanes:
        lane.lanes = lanes
    if len(lanes) > 1:
        one, other = lanes
        join_lanes(
            one.subscriptions,
            other.subscriptions,
            wake_one=one.want_subscriptions,
            wake_other=other.want_subscriptions,
        )
