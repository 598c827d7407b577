"""The host presents aMQTT's plugins as the broker's access control and event callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from amqtt.contexts import Action as AmqttAction
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.sys.broker import BrokerSysPlugin

from penstock.broker.access_control import (
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    AccessControl,
    Action,
    Admittance,
    ConnectAttempt,
    SessionView,
)
from penstock.broker.amqtt_host.calls import SHUTDOWN_SECONDS, PluginCalls
from penstock.broker.amqtt_host.facade import HostedBroker
from penstock.broker.amqtt_host.handlers import (
    answers_last,
    counts_packets,
    decides,
    event_handlers,
    handler_of,
    run_now,
    share_counts,
    warn_of_unknown_events,
)
from penstock.broker.amqtt_host.loading import load_manager
from penstock.broker.amqtt_host.packets import HostedMessage, packet_view, retained_view
from penstock.broker.amqtt_host.sessions import HostedSession, session_of_attempt
from penstock.broker.config.policy import Policy
from penstock.broker.counters import count
from penstock.broker.events import (
    Callbacks,
    ClientConnected,
    ClientDisconnected,
    ClientSubscribed,
    ClientUnsubscribed,
    MessageReceived,
    MessageRetained,
    MessageRouted,
    PacketReceived,
    PacketSent,
    SessionEnded,
)
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.message import Message
from penstock.broker.plugin_guard import is_logged
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.session import Session

_ACTIONS: Final = {action: AmqttAction(action.name) for action in (PUBLISH, SUBSCRIBE, RECEIVE)}

_MAX_ADMITTED: Final = 1_000
"""Authenticated clients whose connection has not opened yet; beyond it the oldest are evicted."""


class AmqttHost(AccessControl):
    """Runs the aMQTT plugins of a policy; the broker's `AccessControl`.

    Create it while the event loop runs, give `callbacks` and the host itself to the core, `attach`
    the core, then call the four steps of its life in order.

    Attributes:
        callbacks: only for events that some plugin handles.
        clock: returns monotonic seconds.
        has_sys_plugin: whether aMQTT's own plugin publishes `$SYS` topics.
        authenticates: whether the policy file names a plugin that authenticates, or asks for
            anonymity. A plugin that is only among aMQTT's defaults, or beside a `topic_check`
            alone, is not named. AnonymousAuthPlugin without anonymity does not authenticate, as it
            accepts any user name.
        lets_anybody_in: whether the policy file names a plugin that lets in clients without a user
            name.
        checks_publish: see `AccessControl`.
        checks_subscribe: see `AccessControl`.
        checks_receive: see `AccessControl`.
        answers_last: see `AccessControl`.
    """

    def __init__(
        self,
        policy: Policy,
        logger: logging.Logger | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_alone: bool = True,
    ) -> None:
        """Load the plugins.

        Args:
            policy: names at least one aMQTT plugin, or leaves the choice to aMQTT.
            logger: the logger for what an operator should know; None for one named ``penstock``.
            clock: returns monotonic seconds, from the same clock as every `now`.
            is_alone: whether nothing else authenticates clients.

        Raises:
            ConfigError: a plugin cannot be loaded.
        """
        self.clock = clock
        self._logger = logger or logging.getLogger("penstock")
        self._keep_alive_grace = policy.timeout_disconnect_delay
        self._core: Core | None = None
        self._sessions: dict[str, HostedSession] = {}
        self._admitted: dict[str, HostedSession] = {}
        self._calls = PluginCalls(
            self._logger, self._failed, self._dropped, max_events=policy.limits.plugin_events
        )
        self.manager = load_manager(policy, HostedBroker(self))
        plugins = self.manager.plugins
        warn_of_unknown_events(plugins, self._logger)
        self._authenticators = [
            handler_of(plugin, "authenticate") for plugin in self.manager.auth_plugins
        ]
        keys = policy.amqtt or {}
        is_named = bool(keys.get("plugins") or "auth" in keys)
        anonymous = [
            plugin
            for plugin in self.manager.auth_plugins
            if isinstance(plugin, AnonymousAuthPlugin)
        ]
        self.lets_anybody_in = is_named and any(
            plugin._allow_anonymous  # noqa: SLF001
            for plugin in anonymous
        )
        self.authenticates = self.lets_anybody_in or (
            is_named and len(self._authenticators) > len(anonymous)
        )
        self._asks_nobody = is_alone and not self._authenticators
        if not is_alone and anonymous:
            self._logger.warning(
                "%s: AnonymousAuthPlugin lets in clients that the other plugins do not know, with "
                "any user name and password; remove it unless that is intended",
                policy.file,
            )
        self._filters = {
            action: [
                handler_of(plugin, "topic_filtering")
                for plugin in self.manager.topic_plugins
                if decides(plugin, amqtt_action)
            ]
            for action, amqtt_action in _ACTIONS.items()
        }
        self.checks_publish = bool(self._filters[PUBLISH])
        self.checks_subscribe = bool(self._filters[SUBSCRIBE])
        self.checks_receive = bool(self._filters[RECEIVE])
        self.answers_last = all(map(answers_last, self.manager.topic_plugins))
        self.has_sys_plugin = any(isinstance(plugin, BrokerSysPlugin) for plugin in plugins)
        self._handlers = event_handlers(plugins)
        # Nobody sees a session where all that there is lets everybody in without a look at it.
        self._is_open = bool(plugins) and all(map(_lets_in_unseen, plugins))
        self.callbacks = self._callbacks()

    def attach(self, core: Core) -> None:
        """Set the broker that the plugins see; call it before `pre_start`."""
        self._core = core
        if any(handler.can_wait for event in self._handlers.values() for handler in event):
            core.catch_up = self._calls.catch_up
        for plugin in self.manager.plugins:
            if counts_packets(plugin):
                share_counts(plugin, core.counters)

    @property
    def core(self) -> Core:
        """The broker.

        Raises:
            RuntimeError: a plugin asks for it before it is attached.
        """
        if self._core is None:
            raise RuntimeError("the broker is not there before on_broker_pre_start")
        return self._core

    # -- access control --------------------------------------------------------------------

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Ask every authentication plugin.

        aMQTT's rule: no plugin says False, and at least one says True. A plugin that raises says
        False. If all answers are None, so is this. With no plugin, and nothing else that
        authenticates, only clients of this machine are served, and all of them are accepted.
        """
        if self._is_open:
            return True
        session = session_of_attempt(attempt, self._keep_alive_grace)
        known = self._sessions.get(attempt.client_id)
        if known is not None and not attempt.clean_start:
            session.attributes = dict(known.attributes)
        if self._asks_nobody:
            return self._admit(session, [True])
        answers = self._calls.ask(self._authenticators, {"session": session})
        if isinstance(answers, list):
            return self._admit(session, answers)
        return self._admit_later(session, answers)

    async def _admit_later(
        self, session: HostedSession, answers: Awaitable[list[Any]]
    ) -> Admittance:
        return self._admit(session, await answers)

    def _admit(self, session: HostedSession, answers: list[Any]) -> Admittance:
        said = [answer for answer in answers if answer is not None]
        if not said:
            return None
        if not all(said):
            return False
        session.will_message = None  # its memory is not counted until the client is let in
        self._admitted[session.client_id or ""] = session
        if len(self._admitted) > _MAX_ADMITTED:
            del self._admitted[next(iter(self._admitted))]
        return True

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Ask every topic plugin; aMQTT's rule: all of them say True.

        A plugin that raises says False, and so does one that answers None, as in aMQTT.
        """
        asked = {"session": self.hosted(session), "topic": topic, "action": _ACTIONS[action]}
        answers = self._calls.ask(self._filters[action], asked)
        return _all(answers) if isinstance(answers, Awaitable) else all(answers)

    # -- events ----------------------------------------------------------------------------

    def _callbacks(self) -> Callbacks:
        """Return callbacks for connections and for the events that some plugin handles."""
        if self._is_open:
            return Callbacks()
        on = self._handlers

        def if_handled(event: str, callback: Any) -> tuple[Any, ...]:
            return (partial(callback, event),) if on[event] else ()

        return Callbacks(
            client_connected=(self._client_connected,),
            client_disconnected=(self._client_disconnected,),
            session_ended=(self._session_ended,),
            client_subscribed=if_handled(BrokerEvents.CLIENT_SUBSCRIBED, self._subscribed),
            client_unsubscribed=if_handled(BrokerEvents.CLIENT_UNSUBSCRIBED, self._unsubscribed),
            message_received=if_handled(BrokerEvents.MESSAGE_RECEIVED, self._message),
            message_routed=if_handled(BrokerEvents.MESSAGE_BROADCAST, self._message),
            message_retained=if_handled(BrokerEvents.RETAINED_MESSAGE, self._retained),
            packet_received=if_handled(MQTTEvents.PACKET_RECEIVED, self._packet),
            packet_sent=if_handled(MQTTEvents.PACKET_SENT, self._packet),
        )

    def _client_connected(self, event: ClientConnected) -> None:
        client_id = event.session.client_id
        if client_id.startswith(LOCAL_CLIENT_PREFIX):
            return
        known = self._sessions.get(client_id)
        newer = self._admitted.pop(client_id, None)
        if newer is not None and newer.connected_as != event.session.username:
            newer = None  # of another user, who did not get in
        if known is None or known.session is not event.session:
            if newer is not None:
                self._sessions[client_id] = newer
            else:
                self._sessions.pop(client_id, None)
            hosted = self.hosted(event.session)
        else:
            hosted = self.hosted(event.session)
            hosted.parent = 1
            if newer is not None:
                hosted.take_over(newer)
        if isinstance(event.session, Session) and event.session.will is not None:
            hosted.will_message = event.session.will.payload
        hosted.connected()
        self._fire(BrokerEvents.CLIENT_CONNECTED, client_id=client_id, client_session=hosted)

    def _client_disconnected(self, event: ClientDisconnected) -> None:
        if event.session.client_id.startswith(LOCAL_CLIENT_PREFIX):
            return
        hosted = self.hosted(event.session)
        hosted.disconnected()
        self._fire(
            BrokerEvents.CLIENT_DISCONNECTED,
            client_id=event.session.client_id,
            client_session=hosted,
        )
        hosted.will_message = None  # freed with the will, whose memory is counted

    def _subscribed(self, name: str, event: ClientSubscribed) -> None:
        client_id = event.session.client_id
        self._fire(name, client_id=client_id, topic=event.topic_filter, qos=event.qos)

    def _unsubscribed(self, name: str, event: ClientUnsubscribed) -> None:
        self._fire(name, client_id=event.session.client_id, topic=event.topic_filter)

    def _message(self, name: str, event: MessageReceived | MessageRouted) -> None:
        message = HostedMessage(event.message)
        self._fire(name, client_id=event.session.client_id, message=message)

    def _retained(self, name: str, event: MessageRetained) -> None:
        retained = retained_view(event.message, self.hosted_publisher(event.message))
        self._fire(name, client_id=None, retained_message=retained)

    def _packet(self, name: str, event: PacketReceived | PacketSent) -> None:
        session = event.session
        version = None if session is None else getattr(session, "version", None)
        told: dict[str, Any] = {
            "packet": packet_view(event.first_byte, event.size_bytes, event.chunks, version)
        }
        if session is not None:
            told["session"] = self.hosted(session)
        self._fire(name, **told)

    def _fire(self, event: str, **told: Any) -> None:
        handlers = self._handlers[event]
        if handlers:
            self._calls.fire(handlers, told)

    def _failed(self, name: str, error: Exception) -> None:
        """Log and count an exception of a plugin."""
        if self._core is not None:
            self._core.guard.failed(name, error)
        else:
            self._logger.error("plugin %s failed: %r", name, error, exc_info=error)

    def _dropped(self, name: str) -> None:
        """Count an event that a plugin does not get, and log it at growing intervals."""
        if self._core is None:
            return
        dropped = self._core.counters.extension_events_dropped
        count(dropped, name)
        n_events = dropped[name]
        if is_logged(n_events):
            self._logger.error("extension %s is behind: %d events dropped", name, n_events)

    # -- sessions --------------------------------------------------------------------------

    def hosted(self, session: SessionView) -> HostedSession:
        """Return the plugins' view of a session; make it where there is none."""
        hosted = self._sessions.get(session.client_id)
        if hosted is None or not (hosted.session is None or hosted.session is session):
            hosted = self._sessions[session.client_id] = HostedSession(session.client_id)
            hosted.username = session.username
        elif hosted.session is not None and hosted.connected_as != session.username:
            hosted.username = session.username  # another user takes up the session
        if isinstance(session, Session):
            hosted.session = session
            hosted.connected_as = session.username
        return hosted

    def hosted_publisher(self, message: Message) -> HostedSession | None:
        """Return the plugins' view of a message's publisher, where it has a session."""
        session = self.core.sessions.get(message.publisher)
        return None if session is None else self.hosted(session)

    def _session_ended(self, event: SessionEnded) -> None:
        """Forget the view of a session that has ended."""
        hosted = self._sessions.get(event.session.client_id)
        if hosted is not None and (hosted.session is None or hosted.session is event.session):
            del self._sessions[event.session.client_id]

    # -- life ------------------------------------------------------------------------------

    async def pre_start(self) -> None:
        """Fire aMQTT's event before the start and wait for its handlers."""
        await self._calls.fire_and_wait(self._handlers[BrokerEvents.PRE_START], None)

    async def post_start(self) -> None:
        """Fire aMQTT's event after the start, when all listeners are open, and wait."""
        await self._calls.fire_and_wait(self._handlers[BrokerEvents.POST_START], None)

    async def pre_shutdown(self) -> None:
        """Fire aMQTT's event before the end, while clients are connected, and wait."""
        handlers = self._handlers[BrokerEvents.PRE_SHUTDOWN]
        await self._calls.fire_and_wait(handlers, SHUTDOWN_SECONDS)

    async def post_shutdown(self) -> None:
        """End the plugins' work, fire aMQTT's last event, and close each plugin."""
        await self._calls.finish()
        handlers = self._handlers[BrokerEvents.POST_SHUTDOWN]
        await self._calls.fire_and_wait(handlers, SHUTDOWN_SECONDS)
        closers = [handler_of(plugin, "close") for plugin in self.manager.plugins]
        await self._calls.fire_and_wait(closers, SHUTDOWN_SECONDS)
        self.manager.forget()


def _lets_in_unseen(plugin: Any) -> bool:
    """Say whether a plugin is aMQTT's own that accepts every client, and logs nothing of it."""
    return (
        type(plugin) is AnonymousAuthPlugin
        and plugin._allow_anonymous  # noqa: SLF001
        and not plugin.context.logger.isEnabledFor(logging.DEBUG)
        and run_now(plugin.authenticate(session=HostedSession(""))) is True
    )


async def _all(answers: Awaitable[list[Any]]) -> bool:
    return all(await answers)
