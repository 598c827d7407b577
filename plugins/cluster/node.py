"""One broker as a node of a cluster: its parts, and what they tell each other."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PenstockError
from penstock.broker.events import (
    Callbacks,
    ClientSubscribed,
    ClientUnsubscribed,
    SessionEnded,
)
from penstock.broker.extensions import (
    LOCAL_CLIENT_PREFIX,
    LocalClients,
    PluginContext,
    SinkRoutes,
)
from penstock.broker.mqtt.topics import SHARE_PREFIX
from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.asks import Asks
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.cluster.inbox import Inbox
from penstock.plugins.cluster.inheritance import Inheritance
from penstock.plugins.cluster.mail import MailRoom
from penstock.plugins.cluster.members import Listener, Members
from penstock.plugins.cluster.node_sink import NodeSink
from penstock.plugins.cluster.node_wills import NodeWills
from penstock.plugins.cluster.notes import DRAIN, Notes
from penstock.plugins.cluster.owners import Owners
from penstock.plugins.cluster.policy_digests import (
    OF_ONE_NODE,
    differences,
    file_digests,
    policy_digests,
)
from penstock.plugins.cluster.retained import RetainedSink
from penstock.plugins.cluster.routes import OtherRoutes, OwnRoutes, is_routed
from penstock.plugins.cluster.shared import Groups
from penstock.plugins.cluster.told_figures import ToldFigures
from penstock.plugins.redis.calls import heed
from penstock.plugins.redis.errors import EngineAwayError, StorageError, StorageFullError
from penstock.plugins.redis.server import redis_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.plugins.cluster.config import ClusterConfig

APPLIED: Final = "applied"
"""A note: the teller has taken the changes of an epoch up to a number."""

_OF_THE_BROKER: Final = f"{LOCAL_CLIENT_PREFIX}$"
"""Local clients whose names begin so are a broker's own, and so are their subscriptions."""


_WAIT_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.1
_FINISH_SECONDS: Final = 2.0
"""For so long a node that ends waits for the engine to have what is for other nodes."""


class Node:
    """Puts the parts together.

    Args:
        config: the keys of the plugin.
        machine: what the nodes of this policy file on this machine have in common: the name, where
            there is one.
        name: of the node.
        context: the parts of the broker.
        routes: the broker's sinks.
        clients: connects local clients.

    Attributes:
        engine: of the cluster.
        owners: knows which clients this node has.
        callbacks: the callbacks of events.
        retained: the sink of retained messages.
        wills: of this node's clients.
        members: the nodes.
        others: their routes.
        sinks: of all members by their names; that of this node is no route target: it takes
            messages for own members of shared subscriptions that other nodes could not deliver.
        announcer: tells them of this node's routes.
        asks: asks other nodes for operators.
        told: what nodes tell of themselves from time to time.
        mail: sessions that outlive their connection, and what waits for them.
        inbox: what they have sent.
        groups: the shared subscriptions.
        inheritance: does what dead nodes cannot do any more.
    """

    def __init__(
        self,
        config: ClusterConfig,
        machine: str,
        name: str,
        context: PluginContext,
        routes: SinkRoutes,
        clients: LocalClients,
    ) -> None:
        self._routes = routes
        self._clients = clients
        self._context = context
        self._logger = context.logger
        self._machine = machine
        self._about: dict[str, Any] = {
            "version": importlib.metadata.version("penstock-mqtt"),
            "since": int(time.time()),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "machine": machine,
            "worker": context.worker.number,
            "policy": policy_digests(context.policy_keys()),
            "files": file_digests(context.policy_keys()),
        }
        self._is_counting = False
        self._is_draining = False
        self._waits_for = ""
        self._is_founder = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._inbox_reading: asyncio.Task[None] | None = None
        self.name = name
        self.sinks: dict[str, NodeSink] = {}
        self.groups = Groups(name, self.sinks, routes, context.clock)
        self.engine = ClusterEngine(redis_server(config.redis), config.name, name, self._logger)
        self.own = OwnRoutes()
        self.others = OtherRoutes(self._routed)
        self.inbox = Inbox(
            clients,
            self._delete,
            self.groups.give_back,
            lambda: self.members.is_certain,
            self._logger,
        )
        self.inheritance = Inheritance(self.engine, self.groups, clients)
        self.announcer = Announcer(self.engine, self.own)
        self._notes = Notes(self.engine, self.others.members, self._logger)
        self._notes.heard[APPLIED] = self._confirmed
        self._notes.heard[DRAIN] = lambda _, seconds: self._in_background(
            "drain", self._drain, float(seconds)
        )
        self.mail = MailRoom(
            self.engine,
            self.announcer,
            self._notes,
            routes,
            clients,
            self._is_first,
            self.groups,
            context.clock,
            self._logger,
        )
        kept = self.mail.sessions.sessions
        self.wills = NodeWills(
            self.engine.keep_will,
            lambda client_id: kept[client_id].origin if client_id in kept else "",
            self._logger,
        )
        self.owners = Owners(
            self.engine,
            self.others,
            self.announcer,
            lambda: self.members.is_certain,
            self._notes,
            self.mail.sessions,
            clients.release,
            self.wills.gone,
        )
        self.retained = RetainedSink(self.engine.retain, clients, context.clock, self._logger)
        listener = Listener(
            beaten=self._beaten,
            joined=self._joined,
            told=self._compare,
            left=self._left,
            applied=self._applied,
            kept=self.mail.routes.changed,
            all_kept=self.mail.take_all,
            retained=self._retained,
            all_retained=self._all_retained,
            duty=self.inheritance.take,
            fenced=self._fenced,
            joined_anew=self._begin_epoch,
        )
        self.members = Members(
            self.engine, self.others, listener, json.dumps(self._about), context.clock, self._logger
        )
        self.announcer.catch_up = self.members.catch_up
        self.asks = Asks(
            self.engine,
            self._notes,
            self.members.infos,
            machine,
            self.mail.routes.boxes,
            self.owners.end_kept,
            self._in_background,
            self._logger,
        )
        self.told = ToldFigures(self.engine, self.others.members, self._figures, self._logger)
        self.callbacks = Callbacks(
            client_connected=(self.wills.connected,),
            client_disconnected=(self.wills.disconnected,),
            client_subscribed=(self._subscribed,),
            client_unsubscribed=(self._unsubscribed,),
            session_ended=(self._session_ended,),
        )

    def _figures(self) -> dict[str, Any]:
        """Return what is told of this node every few seconds."""
        operations = self._context.operations
        is_draining = operations is not None and operations.is_draining
        console = self.asks.url
        for any_address in ("//0.0.0.0:", "//[::]:"):  # nobody can open them
            console = console.replace(any_address, f"//{socket.gethostname()}:")
        return {
            "clients": len(self.owners.owned),
            "console": console,
            "is_draining": is_draining,
            "failure": self.failure,
        }

    # -- start and end -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Become a member whom others do not see yet.

        It waits for servers that cannot be reached yet, and for the replicas that they should have:
        after a loss of power, all start at once.

        Raises:
            EngineStartError: the servers cannot be used, or another broker has this node's name.
            StorageError: they refuse.
        """
        while not await self._has_joined():  # noqa: ASYNC110 (time is a part of it)
            await asyncio.sleep(_WAIT_SECONDS)
        self.members.start()
        self._in_background("look", self.mail.sessions.look)
        self._in_background("expiry", self.mail.expiry.run)

    async def _has_joined(self) -> bool:
        try:
            await self.engine.open()
            await self.engine.look()
            await self.members.join()
        except StorageFullError:
            raise
        except (EngineAwayError, StorageError) as error:
            if str(error) != self._waits_for:  # it may be hours
                self._waits_for = str(error)
                self._logger.warning("this broker waits for its engine: %s", error)
            await self.engine.close()
            return False
        return True

    async def serve(self) -> None:
        """Take what the others have, and show this node to them.

        Raises:
            StorageError: the servers refuse.
        """
        self._is_counting = True
        for client_id, topic_filter in self._clients.all_subscriptions():  # of local clients
            self._count(client_id, topic_filter, self.announcer.subscribed)
        self._begin_epoch()
        await self.members.announce()
        self._in_background("figures", self.told.run)

    def _begin_epoch(self) -> None:
        """Begin what is for the epoch that the node has got."""
        self._is_founder = self.engine.is_founder  # it brings the retained messages that it has
        self._notes.start()
        self._in_background("sessions", self.owners.claim_again)
        self.announcer.start()
        self.wills.keep_again()
        self._stop_reading()
        old = self.sinks.pop(self.name, None)
        self.sinks[self.name] = self._sink(self.name, self.engine.epoch)
        if old is not None:
            old.close()
        reading = self.inbox.follow(self.engine.inbox_reader())
        self._inbox_reading = asyncio.create_task(reading, name="penstock-cluster inbox")

    def _stop_reading(self) -> None:
        if self._inbox_reading is not None:
            self._inbox_reading.cancel()
            self._inbox_reading = None

    async def _fenced(self, has_forgotten: bool) -> None:  # noqa: FBT001 (Listener's form)
        """End what belongs to an epoch that has ended."""
        self.announcer.stop()
        self._notes.stop()
        self._stop_reading()
        await self.owners.fenced(keeps_sessions=has_forgotten)
        if not has_forgotten:  # who has published that goes on elsewhere, and sends it again
            self.mail.sink.drop()
        for sink in self.sinks.values():
            (sink.engine_has_forgotten if has_forgotten else sink.drop)()

    async def close(self) -> None:
        """Leave the cluster; may be called again."""
        self._is_counting = False
        self.announcer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stop_reading()
        has_finished = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_SECONDS):
                finish = [sink.finish() for sink in self.sinks.values()]
                await asyncio.gather(*finish, self.mail.close())
                has_finished = True
        await self.owners.close(gives_up=has_finished)
        await self.inbox.close()
        self.inheritance.close()
        self.groups.close()
        # Delayed wills are another node's, or this one's when it is back. So are clients who may
        # send again elsewhere what is on its way to the engine.
        is_over = has_finished and not self.wills.n_kept
        heir = "" if is_over else min(self.others.members, default=self.name)
        await self.members.close(heir)
        self._notes.stop()
        await self.engine.close()

    async def _drain(self, seconds: float) -> None:
        """Have all clients leave, and then the program stop, as an operator does it."""
        if self._is_draining or self._context.operations is None:  # it has not started
            return
        self._is_draining = True
        self._logger.info("this node is drained within %g s, and stops", seconds)
        self._context.operations.drain(seconds)
        await self.told.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.owners.owned:  # noqa: ASYNC110 (time is a part of it)
                    await asyncio.sleep(_LOOK_SECONDS)
        signal.raise_signal(signal.SIGTERM)

    def _in_background(self, name: str, do: Callable[..., Awaitable[None]], *args: Any) -> None:
        task = asyncio.create_task(self._logged(name, do, *args), name=f"penstock-cluster {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _logged(self, name: str, do: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await do(*args)
        except PenstockError as error:
            self._logger.warning("%s: %s", name, error)
        except Exception:
            self._logger.exception("%s has ended", name)

    # -- what this node's clients do ---------------------------------------------------------------

    def _subscribed(self, event: ClientSubscribed) -> None:
        if event.is_new and self._counts(event.session.client_id):
            self._count(event.session.client_id, event.topic_filter, self.announcer.subscribed)

    def _unsubscribed(self, event: ClientUnsubscribed) -> None:
        if self._counts(event.session.client_id):
            self._count(event.session.client_id, event.topic_filter, self.announcer.unsubscribed)

    def _counts(self, client_id: str) -> bool:
        """Say whether a client's subscriptions are those of this node."""
        return self._is_counting and client_id not in self.mail.sessions.sessions

    def _session_ended(self, event: SessionEnded) -> None:
        client_id = event.session.client_id
        if self._counts(event.session.client_id):
            for topic_filter in event.topic_filters:
                self._count(client_id, topic_filter, self.announcer.unsubscribed)
        self.mail.sessions.ended(client_id)
        self.wills.gone(client_id)
        asyncio.get_running_loop().call_soon(self._left_by, client_id)

    def _left_by(self, client_id: str) -> None:
        """Give a client up, unless a new session has replaced the one that has ended."""
        if self._clients.subscriptions(client_id) is None:
            self.owners.ended(client_id)

    def _count(self, client_id: str, topic_filter: str, note: Callable[[str], object]) -> None:
        if client_id.startswith(_OF_THE_BROKER) or not is_routed(topic_filter):
            return
        note(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            n_members = self.own.counts.get(topic_filter, 0)
            self.groups.change(topic_filter, self.name, n_members)

    def _is_first(self) -> bool:
        return all(self.name < other for other in self.others.members)

    # -- what other nodes do -----------------------------------------------------------------------

    def _sink(self, node: str, epoch: int) -> NodeSink:
        """Return what puts messages into a node's inbox."""
        put = partial(self.engine.put, node, epoch)
        loop = asyncio.get_running_loop()
        return NodeSink(node, put, self.groups.give_back, loop, self._context.clock)

    def _joined(self, node: str, epoch: int) -> None:
        sink = self.sinks[node] = self._sink(node, epoch)
        self._routes.add(sink)
        self.announcer.joined(node, self.members.own_number)
        self.asks.joined(node)
        self._compare(node)

    def _compare(self, node: str) -> None:
        """Warn where a node is not as this one; all of a machine have one file."""
        own, there = self._about, json.loads(self.members.infos[node])
        if there.get("machine") == self._machine:
            return
        if there.get("version") != own["version"]:
            self._logger.warning(
                "node %s has version %s, and this one %s; allowed: one version, but for the time "
                "of an upgrade",
                node,
                there.get("version"),
                own["version"],
            )
        told = differences(own["policy"], there.get("policy", {}))
        if told:
            self._logger.warning(
                "node %s has other values than this one in its policy file: %s", node, told
            )
        told = differences(own["files"], there.get("files", own["files"]))
        if told:
            self._logger.warning("node %s has other files than this one: %s", node, told)
        doubled = own["policy"].get(OF_ONE_NODE)
        if doubled and doubled == there.get("policy", {}).get(OF_ONE_NODE):
            self._logger.error(
                "node %s has %s as this one has it, and each message passes once for each; "
                "allowed: one node with it",
                node,
                OF_ONE_NODE,
            )

    def _beaten(self, number: int) -> None:
        self.announcer.beaten(number)
        self.wills.beaten()

    def reloaded(self) -> None:
        """Tell the others what the policy file says by now, and the files that it names."""
        self._about["policy"] = policy_digests(self._context.policy_keys())
        self._about["files"] = file_digests(self._context.policy_keys())
        for node in self.members.infos:
            self._compare(node)
        self._in_background("policy", self.members.tell, json.dumps(self._about))

    def _left(self, node: str, epoch: int) -> None:
        self.announcer.left(node)
        self.owners.left(node, epoch)
        sink = self.sinks.pop(node, None)
        if sink is not None:
            self._routes.remove(sink)
            sink.close()
        self.groups.left(node)
        self._in_background(node, self.inbox.forget, node)
        self._in_background(node, self.engine.fence, node, epoch)

    def _routed(self, node: str, topic_filter: str, n_members: int) -> None:
        """Take a change of another node's routes."""
        if topic_filter.startswith(SHARE_PREFIX):
            self.groups.change(topic_filter, node, n_members)
            return
        sink = self.sinks.get(node)
        if sink is None:
            return
        if n_members:
            self._routes.add_filter(sink, topic_filter)
        else:
            self._routes.remove_filter(sink, topic_filter)

    def _applied(self, node: str, epoch: int, number: int) -> None:
        self._notes.tell(node, APPLIED, epoch, number)

    def _confirmed(self, node: str, epoch: int, number: int) -> None:
        if epoch == self.engine.epoch:
            self.announcer.confirm(node, number)

    def _retained(self, topic: str, data: bytes, is_own: bool) -> None:  # noqa: FBT001
        if is_own:
            self.retained.own_seen(topic)
        else:
            self.retained.follow(topic, data)

    async def _all_retained(self, found: AsyncIterator[list[tuple[str, bytes]]]) -> None:
        self.retained.restart()
        topics: set[str] = set()
        async for some in found:
            for topic, data in some:
                topics.add(topic)
                self.retained.follow(topic, data)
            await asyncio.sleep(0)
        if self._is_founder:
            self._is_founder = False
            for message in list(self._clients.walk_retained()):
                self.retained.bring(message)
            return
        await self.retained.keep_only(topics)

    def _delete(self, entry_ids: Sequence[bytes], n_bytes: int) -> None:
        self.engine.delete(entry_ids, n_bytes).add_done_callback(heed)

    # -- reports -----------------------------------------------------------------------------------

    @property
    def failure(self) -> str:
        """Why subscriptions or wills of this node are not stored; "" where they are."""
        return self.announcer.failure or self.wills.failure

    def problem(self) -> str:
        """Return why this node lets in no client that is new to it; "" where it does.

        An engine that refuses what is to be stored is no reason: all nodes have that in common, and
        a load balancer that asks would take them all away.
        """
        if self.members.is_certain:
            return ""
        told = self.engine.failure or self.members.failure
        return told or "no beat of this node was answered in time"
