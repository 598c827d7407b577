"""One uplink, or one lane of it: connects, keeps the connection alive, and connects again.

Theory of operation. `Uplink` runs one `CloudConnection` after another. Each is a connection to the
cloud's broker with two local clients that come and go with it, and a `PacketRelay` between the
three. When any of them ends, all do.

Flow control goes through: while the cloud's connection has too many unsent bytes, nothing is read
from the local clients, so that messages wait in the session of the site's broker, which decides in
which order they leave and what is withheld. While the site's broker does not read, nothing is read
from the cloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Final

from penstock.broker.counters import count
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, LocalClients
from penstock.broker.mqtt.enums import MQTT_5, ProtocolVersion
from penstock.edge_proxy.uplink.cloud_connection import (
    GOODBYE_SECONDS,
    NOTHING_LEFT,
    WISHED,
    WRITE_LOW_BYTES,
    CloudConnection,
)
from penstock.edge_proxy.uplink.cloud_subscriptions import CloudSubscriptions
from penstock.edge_proxy.uplink.config import MARKER_TOPIC, STATE_TOPIC, UplinkKeys
from penstock.edge_proxy.uplink.connecting import (
    NO_BRIDGES,
    RelaySettings,
    UplinkRefusedError,
    read_password,
)
from penstock.edge_proxy.uplink.filters import intersection
from penstock.edge_proxy.uplink.lanes import Lane
from penstock.edge_proxy.uplink.one_shot_clients import forget_session, prepare_session
from penstock.edge_proxy.uplink.packet_relay import PacketRelay, UplinkCounts
from penstock.edge_proxy.uplink.partnership import Partnership
from penstock.edge_proxy.uplink.remapping import Loops, Remapping, in_parts, of_parts
from penstock.edge_proxy.uplink.retained_up import RetainedUp
from penstock.edge_proxy.uplink.retries import (
    CONCEDED,
    SHORT_IN_A_ROW,
    SHORT_SECONDS,
    Concessions,
    Retries,
)
from penstock.edge_proxy.uplink.schedule_and_budget import OUTSIDE, Absence, Budget, Demand
from penstock.edge_proxy.uplink.suspects import End, Suspects
from penstock.edge_proxy.upstream import Upstream, UpstreamError, Upstreams

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at how much waits, with `start.when` of ``on_demand``."""

QUIET_SECONDS: Final = 60.0
"""When nothing has passed on a lane that leaves for so long, the cloud has nothing left for it: its
session there has no subscription."""

OF_THE_BROKER: Final = frozenset({"connack", "refused", "disconnected", "silent", "protocol"})
"""Reasons of an end after which the next address is tried, if there are several."""

MOST_SWEEP_SECONDS: Final = 60.0
"""Longest time between two looks for messages that have waited for too long."""


class Uplink:
    """One uplink, or one lane of it.

    Attributes:
        absence: for how long it has not been connected, and why.
        name: its name in the policy file; the lane of large messages adds ``/large``.
        lanes: all lanes of the uplink, this one included; set once all are made.
        client_id: Client Identifier at the cloud's broker.
        up_id: Client Identifier of its local client that subscribes.
        down_id: beginning of the Client Identifiers of its local clients that publish.
        upstreams: addresses of the cloud's broker.
        subscriptions: what the site's clients want, and what the cloud has granted.
        budget: the bytes that may go up, common to its lanes.
    """

    def __init__(
        self,
        name: str,
        site: str,
        keys: UplinkKeys,
        lane: Lane,
        local_clients: LocalClients,
        logger: Logger,
        *,
        budget: Budget,
        rng: random.Random,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """Make an uplink that does nothing yet: `prepare` and `start` follow."""
        self.name = lane.of(name, "/")
        self.keys = keys
        self.lane = lane
        self.lanes: Sequence[Uplink] = (self,)
        self.partnership = Partnership(self)
        self.counts = UplinkCounts()
        self.client_id = lane.of(keys.client_id or f"{site}-{name}", "-")
        self.up_id = lane.of(f"{LOCAL_CLIENT_PREFIX}{name}/up", "-")
        self._own_prefix = f"{LOCAL_CLIENT_PREFIX}{name}/down"
        self.down_id = lane.of(self._own_prefix, "-")
        self.local_clients = local_clients
        self.logger = logger
        self.clock = clock
        self.upstreams = Upstreams(
            keys.upstream,
            logger,
            path=f"plugins.uplink.uplinks.{name}.upstream",
            unsent_bytes=WRITE_LOW_BYTES,
            clock=clock,
        )
        self._without_session: set[Upstream] = set()
        self._concessions = Concessions(self.name, logger)
        prefix = keys.parts_prefix
        self.remapping = Remapping(
            of_parts(lane.up, prefix),
            of_parts(lane.down, prefix),
            all_up=of_parts(keys.up, prefix),
            all_down=of_parts(keys.down, prefix),
        )
        self._has_parts_down = any(rule.parts for rule in lane.down)
        self.loops = Loops(site, keys.max_hops)
        self.cloud_subscriptions = CloudSubscriptions(
            self.remapping,
            linger_seconds=keys.linger_seconds,
            marker_topic=self._marker_topic,
            retained=lambda name: [
                one
                for down_id in self.local_ids[1:]
                for one in local_clients.retained(name, down_id)
            ],
            new_token=lambda: b"%016x" % rng.getrandbits(64),
            logger=logger,
        )
        self.subscriptions = self.cloud_subscriptions.subscriptions
        self._lost_at: float | None = None
        self.budget = budget
        self._schedule = keys.times.schedule()
        self._demand = Demand(keys.start)
        self._wall = wall
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: CloudConnection | None = None
        self._suspects = Suspects(clock, has_codes=keys.version == "5")
        self._old_filters: Sequence[str] = ()
        self._retries = Retries(keys.reconnect, rng)
        self._is_stopping = False
        self._sweeping: asyncio.TimerHandle | None = None
        self._n_passed = 0
        self._quiet_since = 0.0
        self._retained_up = RetainedUp(
            self.up_id, local_clients, keys, lane, self.remapping.up_filters(), self._own_prefix
        )
        self.absence = Absence(clock, f"connecting to {self.address}")
        self._has_left = False  # it leaves, and has no sessions: the cloud may have some

    @property
    def local_ids(self) -> tuple[str, ...]:
        """Client Identifiers of its local clients."""
        return self.up_id, *(self.down_id_of(upstream) for upstream in self.upstreams.each)

    def down_id_of(self, upstream: Upstream) -> str:
        """Return the Client Identifier of the local client that publishes what an address sends.

        Each of several addresses may be a broker with sessions of its own.
        """
        return self.down_id if len(self.upstreams.each) == 1 else f"{self.down_id}/{upstream}"

    @property
    def address(self) -> str:
        """Addresses of the cloud's broker, as text."""
        return str(self.upstreams)

    async def prepare(self) -> None:
        """Subscribe to what goes up, so that it waits for the cloud from now on.

        Raises:
            PenstockError: the site's own broker does not let it.
        """
        read_password(self.name, self.keys)
        known = self.local_clients.subscriptions(self.up_id)
        self._old_filters = known or ()
        if known is None and self.lane.leaves:
            self._has_left = True
            return
        filters = self.remapping.up_filters()
        sizes = self.lane.sizes
        await prepare_session(self.local_clients, self.up_id, filters, self._old_filters, sizes)
        self.limit()
        for client_id in self.local_ids:
            self.local_clients.explain(client_id, self.in_words)
        self._restore_subscriptions()

    def limit(self) -> None:
        """Give the session of *up*, if there is one, the limits of `backlog`."""
        backlog = self.keys.backlog
        self.local_clients.limit(
            self.up_id,
            messages=backlog.messages,
            n_bytes=backlog.bytes,
            drops_oldest=backlog.when_full == "drop_oldest",
            refuses=backlog.when_full == "refuse",
        )

    def in_words(self) -> str:
        """Say why it is not connected, or has one connection instead of two; "" for neither."""
        told = self.partnership.why_one
        is_away = not (self.counts.connected or (told and self.partnership.is_refused))
        return self.absence.in_words() if is_away else told

    def _restore_subscriptions(self) -> None:
        """Restore what the cloud was asked for before a restart, and what clients want."""
        prefix = self._record_prefix
        downs = (self.local_clients.subscriptions(one) for one in self.local_ids[1:])
        known = next((filters for filters in downs if filters is not None), ())
        self.subscriptions.restore(
            name.removeprefix(prefix) for name in known if name.startswith(prefix)
        )
        now = self.clock()
        for client_id, topic_filter, qos in self.local_clients.subscriptions_of_others():
            self._client_subscribed(client_id, topic_filter, qos, now)

    @property
    def _record_prefix(self) -> str:
        """Beginning of the records of subscriptions in the session of *down*."""
        return f"{LOCAL_CLIENT_PREFIX}{self.name}/"

    def client_subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """Note that a client of the site has subscribed."""
        self._client_subscribed(client_id, topic_filter, qos, self.clock())
        self.want_subscriptions()

    def _client_subscribed(self, client_id: str, topic_filter: str, qos: int, now: float) -> None:
        """Note that a client wants messages, and their parts, which would be lost at QoS 0."""
        self.subscriptions.client_subscribed(client_id, topic_filter, qos, now)
        if self._has_parts_down:
            name = in_parts(topic_filter, self.keys.parts_prefix)
            self.subscriptions.client_subscribed(client_id, name, max(qos, 1), now)

    def client_unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Note that a client of the site has unsubscribed."""
        self.subscriptions.client_unsubscribed(client_id, topic_filter, self.clock())
        if self._has_parts_down:
            name = in_parts(topic_filter, self.keys.parts_prefix)
            self.subscriptions.client_unsubscribed(client_id, name, self.clock())
        self.want_subscriptions()

    def session_ended(self, client_id: str) -> None:
        """Note that the session of a client of the site has ended."""
        self.subscriptions.session_ended(client_id, self.clock())
        self.want_subscriptions()

    def want_subscriptions(self) -> None:
        """Have the connection, if there is one, soon ask the cloud for what has changed."""
        if self._connection is not None:
            self._connection.want_subscriptions()

    def ask(self, relay: PacketRelay) -> float | None:
        """Handle the cloud's answers about subscriptions, and ask it for what has changed.

        Returns:
            Seconds until it must be called again; None for no such time.
        """
        asked = self.cloud_subscriptions
        for name, code in relay.answers:
            if code is None:
                asked.unsubscribed(name)
            else:
                asked.subscribed(name, code)
        for topic in relay.retained:
            asked.retained_came(topic)
        for marker in relay.markers:
            if marker is None:
                asked.marker_refused()
            else:
                asked.marker_came(marker)
        relay.answers.clear()
        relay.retained.clear()
        relay.markers.clear()
        self.subscriptions.take(self.partnership.classes_down(relay))
        asks = asked.take(self.clock())
        relay.subscribe(asks.subscribe, asks.marker)
        if relay.answers or relay.markers:  # for what is set aside and was not sent
            self.want_subscriptions()
        if asks.ends_marker:
            relay.end_marker()
        relay.unsubscribe(asks.unsubscribe)
        # What a client of the site has retained meanwhile stays.
        retained = self.local_clients.retained
        relay.clear([topic for topic in asks.clear if retained(topic, self.down_id)])
        prefix = self._record_prefix
        relay.record(
            [prefix + name for name in asks.add_records],
            [prefix + name for name in asks.remove_records],
        )
        relay.watches_retained = asked.is_waiting
        at = asked.next_deadline()
        return None if at is None else max(0.0, at - self.clock())

    def repeat_retained(self, relay: PacketRelay) -> float | None:
        """Let retained messages go up that the cloud lacks.

        Returns:
            Seconds until it must be called again; None for never.
        """
        has_flag = relay.retain_available and not self._suspects.retains_nothing
        seconds = self._retained_up.step(relay) if has_flag else None
        self.counts.retained_repeated = self._retained_up.n_repeated
        return seconds

    @property
    def connected_address(self) -> str:
        """Address of the cloud's broker to which this lane is connected; "" for none."""
        return str(self._connection.upstream) if self.counts.connected and self._connection else ""

    def start(self) -> None:
        """Connect, and connect again whenever the connection has ended."""
        self.upstreams.start()
        self._task = asyncio.create_task(self._run(), name=f"uplink {self.name}")
        if self.keys.backlog.max_age_seconds is not None and not self._has_left:
            self._sweep(self.keys.backlog.max_age_seconds)

    def _sweep(self, seconds: float) -> None:
        """Drop what has waited for too long, and repeat that by a timer."""
        self.local_clients.drop_older(self.up_id, seconds)
        wait = min(MOST_SWEEP_SECONDS, seconds / 4)
        self._sweeping = asyncio.get_running_loop().call_later(wait, self._sweep, seconds)

    async def stop(self) -> None:
        """Disconnect from the cloud, and end."""
        self._is_stopping = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.partnership.stop()
        if self._connection is not None:
            await self._connection.say_goodbye()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.upstreams.close()

    async def _run(self) -> None:
        if self._has_left:
            await self._end_sessions()
            return
        while True:
            await self._until_wanted()
            began_at = self.clock()
            reason, told = await self._connect_once()
            if self._is_stopping:
                return
            self._connected_is(0)
            if reason in CONCEDED:
                continue
            was_accepted = self._connection is not None and self._connection.is_accepted
            self.partnership.ended(reason, told, was_accepted=was_accepted)
            if reason == WISHED:
                self.logger.info("uplink %s: disconnected: %s", self.name, told)
                self._retries.succeeded()
                if self.lane.leaves and self._is_quiet(self.clock()):
                    await self._end_sessions()
                    return
                continue
            count(self.counts.failures, reason)
            seconds = self.clock() - began_at
            self._retries.ended(seconds, was_accepted=was_accepted)
            self._look_for_refusal(reason, was_accepted=was_accepted)
            if self.partnership.is_refused:
                continue
            wait = self._wait_seconds(reason, seconds)
            self.logger.warning("uplink %s: %s; the next attempt in %.1f s", self.name, told, wait)
            self.absence.lasts(told, next_in_seconds=wait)
            await self._wait_for_retry(wait)

    def _look_for_refusal(self, reason: str, *, was_accepted: bool) -> None:
        """Find out whether the cloud's broker has ended the connection at what was sent."""
        suspects, connection = self._suspects, self._connection
        if connection is None or not was_accepted:
            return
        relay = connection.relay
        is_closed = reason in ("closed", "disconnected", "taken_over")
        code, under_way = relay.disconnect_code, relay.under_way()
        is_short = self._retries.n_short >= SHORT_IN_A_ROW
        end = End(is_closed, code, under_way, relay.has_answered, connection.is_prompt, is_short)
        refused = suspects.ended(end)
        if refused is None:
            return
        is_aside = suspects.is_aside(refused)
        self.logger.warning(
            "uplink %s: %s has ended the connection at %s: its access control (ACL) may deny the "
            "topic%s",
            self.name,
            self.address,
            refused,
            "; it is set aside, and what waits behind it passes" if is_aside else "",
        )
        if is_aside and refused.kind == "message" and self.partnership.hand_over(refused):
            suspects.answered(refused)

    @property
    def has_new_session(self) -> bool:
        """Whether the cloud's broker had no session of this lane when it last accepted it."""
        connection = self._connection
        return (
            connection is not None
            and connection.is_accepted
            and not connection.relay.session_present
        )

    @property
    def has_echo(self) -> bool:
        """Whether the cloud's broker would send to one lane what the other one has published.

        No Local only holds within one client. Penstock takes both lanes for one client.
        """
        connection = self._connection
        if connection is None or not connection.is_accepted or connection.relay.lanes_are_kept:
            return False
        rules = itertools.product(self.keys.up, self.keys.down)
        return any(intersection(up.remote_filter, down.remote_filter) for up, down in rules)

    def leave(self, why: str) -> None:
        """Disconnect, if there is a connection: the uplink goes on without this lane."""
        if self._connection is not None and not self._connection.ended.done():
            self._connection.leave(why, for_good=True)

    def _is_quiet(self, now: float) -> bool:
        """Say whether all that was left in the sessions of a lane that leaves has passed."""
        n_passed = self.counts.up_messages + self.counts.down_messages
        is_left = self.local_clients.waiting(self.up_id) or not self.subscriptions.has_none
        if is_left or n_passed != self._n_passed:
            self._n_passed, self._quiet_since = n_passed, now
            return False
        return now - self._quiet_since >= QUIET_SECONDS

    async def _end_sessions(self) -> None:
        """End the sessions of a lane that leaves, at the site and in the cloud."""
        while True:
            connection = CloudConnection(self, asyncio.get_running_loop())
            try:
                dialled = await self.upstreams.dial(lambda: connection.cloud)  # noqa: B023 (at once)
                settings = self._settings(dialled.upstream)
                await forget_session(
                    settings,
                    dialled.transport,
                    self.keys.upstream.connack_timeout_seconds,
                    clears_state=True,
                )
            except PenstockError as error:
                if isinstance(error, UplinkRefusedError):
                    if error.reason == NO_BRIDGES:
                        self._concessions.refused(dialled.upstream, NO_BRIDGES, None)
                        continue
                    self.partnership.ended(error.reason, str(error), was_accepted=False)
                    if self.partnership.is_refused:  # there is no session, or it cannot be reached
                        break
                wait = self._wait_seconds("", 0.0)
                told = f"its session in the cloud cannot be ended: {error}"
                self.logger.warning(
                    "uplink %s: %s; the next attempt in %.1f s", self.name, told, wait
                )
                self.absence.lasts(told, next_in_seconds=wait)
                await self._wait_for_retry(wait)
            else:
                break
        self.local_clients.end_sessions(lambda client_id: client_id in self.local_ids)
        self.logger.info(
            "uplink %s: it leaves, and nothing is left in it: its sessions have ended, here and in "
            "the cloud",
            self.name,
        )

    async def _wait_for_retry(self, seconds: float) -> None:
        """Wait until the next attempt is due, or until the other lane has connected."""
        self._is_due.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()

    def retry_now(self) -> None:
        """Make the next attempt at once: the cloud's broker is there."""
        self._is_due.set()

    async def _until_wanted(self) -> None:
        """Wait until the schedule allows a connection and something asks for one."""
        has_waited = False
        while True:
            opening = self._schedule.at(self._wall())
            is_wanted = self.lane.leaves or self._demand.wants_start(self.n_waiting)
            if opening.is_open and is_wanted:
                wait = self.partnership.may_connect_in()
                if wait:
                    has_waited = True
                    self.absence.lasts("it waits for the other connection")
                    await self._wait_for_retry(wait)
                    continue
                self.budget.set_rate(opening.max_bytes_per_second, self.clock())
                if has_waited:
                    self.absence.lasts(f"connecting to {self.address}")
                return
            has_waited = True
            self.absence.lasts(OUTSIDE if is_wanted else self._demand.lacks)
            wait = opening.look_again_seconds
            await asyncio.sleep(min(wait, LOOK_SECONDS) if opening.is_open else wait)

    @property
    def n_waiting(self) -> int:
        """How many messages of all lanes wait to go up or are unacknowledged."""
        return sum(self.local_clients.waiting(lane.up_id) for lane in self.lanes)

    @property
    def is_receiving(self) -> bool:
        """Whether a message of the cloud is being received: on a slow connection, for minutes."""
        connection = self._connection
        if connection is None or connection.ended.done():
            return False
        return connection.is_accepted and connection.relay.from_cloud.is_in_payload

    def look(self) -> tuple[str, float]:
        """Check the conditions under which the uplink may be connected.

        Returns:
            (why it is to disconnect, or ""; seconds until the next check).
        """
        now = self.clock()
        opening = self._schedule.at(self._wall())
        if not opening.is_open:
            return OUTSIDE, 0.0
        self.budget.set_rate(opening.max_bytes_per_second, now)
        if self.lane.leaves:
            why = NOTHING_LEFT if self._is_quiet(now) else ""
            return why, min(QUIET_SECONDS / 4, opening.look_again_seconds)
        counts = [lane.counts for lane in self.lanes]
        n_passed = sum(each.up_messages + each.down_messages for each in counts)
        n_waiting = self.n_waiting + sum(lane.is_receiving for lane in self.lanes)
        stop_in = self._demand.stop_in_seconds(n_passed, n_waiting, now)
        if stop_in is None:
            return "", opening.look_again_seconds
        idle = f"nothing has passed for {self.keys.start.idle_seconds:g} s"
        return "" if stop_in else idle, min(stop_in, opening.look_again_seconds)

    def _wait_seconds(self, reason: str, seconds: float) -> float:
        """Return how long to wait before the next attempt."""
        connection, retries = self._connection, self._retries
        relay = connection.relay if connection is not None and connection.is_accepted else None
        is_suspicious = not self._suspects.is_idle
        is_strange = retries.n_short == SHORT_IN_A_ROW and not is_suspicious
        if reason == "taken_over" or is_strange:
            self.logger.error(
                "uplink %s: %s: another client has the client id %r, or the broker ends each "
                "connection: %d have ended within %.0f s each; give every uplink of every site a "
                "client_id of its own",
                self.name,
                self.address,
                self.client_id,
                max(1, retries.n_short),
                SHORT_SECONDS,
            )
        # On a link that is cut again and again, each connection transfers some messages. A broker
        # that sends DISCONNECT was not cut off: another client may have the client id.
        is_cut_off = relay is not None and relay.has_passed and not relay.disconnect_code
        if is_cut_off or retries.is_stable(seconds, was_accepted=relay is not None):
            retries.succeeded()
        return retries.wait_seconds(is_suspicious=is_suspicious)

    async def _connect_once(self) -> tuple[str, str]:
        """Connect and serve until the end.

        Returns:
            (the reason as one word, a text for the log that names the address).
        """
        connection = self._connection = CloudConnection(self, asyncio.get_running_loop())
        self.subscriptions.comes(is_so=True)
        self._quiet_since = self.clock()
        settings: RelaySettings | None = None
        try:
            relay = await self._dial(connection)
            settings = relay.settings
            connection.begin(relay)
        except UpstreamError as error:
            self.subscriptions.comes(is_so=False)
            self._suspects.failed()
            return "unreachable", str(error)
        except UplinkRefusedError as error:
            connection.end(error.reason, str(error))
        except PenstockError as error:
            connection.end("configuration", str(error))
        except Exception:
            self.logger.exception("uplink %s: a fault of the uplink", self.name)
            connection.end("fault", "a fault of the uplink")
        try:
            reason, told = await connection.ended
            if not connection.is_accepted and hasattr(connection, "upstream"):
                is_conceded = self._concessions.refused(connection.upstream, reason, settings)
                if not is_conceded and reason != WISHED:
                    self._suspects.failed()
            if reason in OF_THE_BROKER:
                self.upstreams.failed(connection.upstream, told, is_silent=reason == "connack")
            if reason == WISHED:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await connection.closed.wait()
            return reason, f"{getattr(connection, 'upstream', self.address)}: {told}"
        finally:
            connection.close()
            if connection.is_accepted:
                self._lost_at = self.clock()
            self.cloud_subscriptions.lost()
            self.subscriptions.comes(is_so=False)

    async def _dial(self, connection: CloudConnection) -> PacketRelay:
        """Establish the network connection to the cloud's broker.

        Where this site has no session for a broker, that broker's session is ended first.

        Raises:
            UpstreamError: it cannot be established.
            UplinkRefusedError: the session there cannot be ended.
            UplinkError: the password cannot be read.
        """
        while True:
            dialled = await self.upstreams.dial(lambda: connection.cloud)
            upstream = connection.upstream = dialled.upstream
            settings = self._settings(upstream)
            is_known = self.local_clients.subscriptions(settings.down_id) is not None
            if is_known or self.keys.adopts_session or upstream in self._without_session:
                return PacketRelay(
                    settings,
                    self.remapping,
                    self.loops,
                    self.counts,
                    self.logger,
                    suspects=self._suspects,
                    old_filters=self._old_filters,
                )
            await forget_session(
                settings, dialled.transport, self.keys.upstream.connack_timeout_seconds
            )
            self._without_session.add(upstream)

    def _settings(self, upstream: Upstream) -> RelaySettings:
        keys = self.keys
        local = self.local_clients
        is_5 = keys.version == "5"
        other = self.partnership.other
        return RelaySettings(
            keys=keys,
            lane=self.lane,
            up_id=self.up_id,
            down_id=self.down_id_of(upstream),
            own_prefix=self._own_prefix,
            other_lane="" if other is None else other.client_id,
            client_id=self.client_id,
            version=MQTT_5 if is_5 else ProtocolVersion.MQTT_3_1_1,
            is_bridge=keys.bridge_bit and not is_5 and self._concessions.may_be_bridge(upstream),
            password=read_password(self.name, keys),
            marker_topic=self._marker_topic,
            state_topic=self.state_topic,
            retains_cloud_state=self._concessions.may_retain(upstream),
            receive_maximum=local.receive_maximum,
            maximum_packet_size=local.maximum_packet_size,
        )

    @property
    def state_topic(self) -> str | None:
        """Topic in which its state is retained, or None.

        An optional lane has none: the uplink is connected without it.
        """
        if not self.keys.notifications or (self.lane.is_optional and not self.lane.leaves):
            return None
        topic = self.keys.notification_topic
        return self.lane.of(topic, "/") if topic else STATE_TOPIC.format(client_id=self.client_id)

    @property
    def _marker_topic(self) -> str | None:
        keys = self.keys
        if not (keys.clear_retained and keys.outgoing_retain):  # a marker is a retained message
            return None
        if keys.marker_topic is not None:
            return self.lane.of(keys.marker_topic, "/")
        return MARKER_TOPIC.format(client_id=self.client_id)

    # -- the other lane ------------------------------------------------------------------------

    def _connected_is(self, connected: int) -> None:
        """Note whether this lane is connected, and check which lane may take over the other."""
        if connected or self.counts.connected:
            self.absence.begins()
        self.counts.connected = connected
        for lane in self.lanes:
            lane.partnership.look_at_takeover()
            lane.check_pace()
            if lane is not self:
                lane.want_subscriptions()

    def check_pace(self) -> None:
        """Have the connection, if there is one, check whether it is to be paced."""
        if self._connection is not None:
            self._connection.check_pace()

    @property
    def _refreshes(self) -> bool:
        """Whether changes of retained messages may have been lost, as also by a restart."""
        seconds = self.keys.refresh_retained_seconds
        if seconds is None:
            return False
        return self._lost_at is None or self.clock() - self._lost_at >= seconds

    def accepted(self, relay: PacketRelay, upstream: Upstream) -> None:
        """Note that the cloud's broker has accepted a connection.

        From now on, packet identifiers mean something else to the brokers at other addresses.
        """
        self.upstreams.succeeded(upstream)
        self._without_session.clear()
        self._concessions.accepted(upstream, relay.settings)
        down_id = relay.settings.down_id
        others = [client_id for client_id in self.local_ids[1:] if client_id != down_id]
        if others:
            self.local_clients.end_sessions(lambda client_id: client_id in others)
        self._retained_up.connected(
            sends_all=not (relay.session_present and self._old_filters),
            lanes=[lane.up_id for lane in self.lanes],
        )
        self._old_filters = tuple(self.remapping.up_filters())
        self.subscriptions.connected(
            session_present=relay.session_present, refreshes=self._refreshes
        )
        self.partnership.accepted(relay)
        self._suspects.accepted()
        self._connected_is(1)
        self.counts.connections += 1
        self.logger.info(
            "uplink %s: connected to %s as %s%s",
            self.name,
            upstream,
            self.client_id,
            ", which has its session" if relay.session_present else "",
        )
