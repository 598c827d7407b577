"""The events that each plugin handles, and whether a handler's coroutine can suspend."""

from __future__ import annotations

import dis
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final

from amqtt.contexts import Action
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.plugins.authentication import AnonymousAuthPlugin, FileAuthPlugin
from amqtt.plugins.logging_amqtt import EventLoggerPlugin, PacketLoggerPlugin
from amqtt.plugins.sys.broker import (
    STAT_BYTES_RECEIVED,
    STAT_BYTES_SENT,
    STAT_MSG_RECEIVED,
    STAT_MSG_SENT,
    STAT_PUBLISH_RECEIVED,
    STAT_PUBLISH_SENT,
    BrokerSysPlugin,
)
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin, TopicTabooPlugin

from penstock.broker.config.checked_yaml import suggest
from penstock.broker.counters import Counters

EVENTS: Final = (*BrokerEvents, *MQTTEvents)

AsyncMethod = Callable[..., Coroutine[Any, Any, Any]]

_AWAITS_ONLY_SUPER: Final = frozenset(
    {
        AnonymousAuthPlugin.authenticate,
        FileAuthPlugin.authenticate,
        TopicTabooPlugin.topic_filtering,
        TopicAccessControlListPlugin.topic_filtering,
    }
)
"""These stock methods only await the same method of the next class."""

# Checking an Argon2 hash takes tens of milliseconds by design; it releases the interpreter's lock.
_SLOW: Final = frozenset({FileAuthPlugin.authenticate})

_LOGGED_ABOVE_DEBUG: Final = {BrokerEvents.CLIENT_CONNECTED, BrokerEvents.CLIENT_DISCONNECTED}


@dataclass(frozen=True, slots=True)
class Handler:
    """One coroutine method of one plugin.

    Attributes:
        name: plugin and method, for logs and counters.
        is_slow: whether it uses the processor for so long that it needs a thread.
    """

    name: str
    plugin: Any
    call: AsyncMethod
    can_wait: bool
    is_slow: bool = False


def handler_of(plugin: Any, method_name: str) -> Handler:
    """Return a plugin's method as a handler."""
    call = getattr(plugin, method_name)
    name = f"{type(plugin).__name__}.{method_name}"
    is_slow = getattr(call, "__func__", None) in _SLOW
    return Handler(name, plugin, call, _can_wait(plugin, call), is_slow)


def event_handlers(plugins: Sequence[Any]) -> dict[str, tuple[Handler, ...]]:
    """Return each event's handlers that have something to do, in the order of the plugins."""
    return {
        event: tuple(
            handler_of(plugin, f"on_{event}")
            for plugin in plugins
            if getattr(plugin, f"on_{event}", None) is not None
            and not _is_idle_logger(plugin, event)
            and not (event in MQTTEvents and counts_packets(plugin))
        )
        for event in EVENTS
    }


def _is_idle_logger(plugin: Any, event: str) -> bool:
    """Say whether a stock logger would log nothing of an event at its present level."""
    if plugin.context.logger.isEnabledFor(logging.DEBUG):
        return False
    if type(plugin) is PacketLoggerPlugin:
        return True
    return type(plugin) is EventLoggerPlugin and event not in _LOGGED_ABOVE_DEBUG


def _can_wait(plugin: Any, call: Callable[..., Any]) -> bool:
    """Say whether a coroutine may suspend; True where that is unknown."""
    while isinstance(call, partial):
        call = call.func
    function = getattr(call, "__func__", call)
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if all(instruction.opname != "YIELD_VALUE" for instruction in dis.get_instructions(code)):
        return False
    if function not in _AWAITS_ONLY_SUPER:
        return True
    name = function.__name__
    classes = type(plugin).__mro__
    for index, cls in enumerate(classes):
        if cls.__dict__.get(name) is function:
            above = [later for later in classes[index + 1 :] if name in later.__dict__]
            return not above or _can_wait(plugin, above[0].__dict__[name])
    return True


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not suspend.

    Raises:
        Exception: whatever the coroutine raises.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a coroutine that awaits nothing has waited")


def decides(plugin: Any, action: Action) -> bool:
    """Say whether a topic plugin may refuse an action at all; True where that is unknown.

    aMQTT's access control list allows every publish and every delivery for which the file has no
    list.
    """
    if type(plugin) is not TopicAccessControlListPlugin or action == Action.SUBSCRIBE:
        return True
    if action == Action.PUBLISH:
        return bool(plugin._get_config_option("publish-acl", {}))  # noqa: SLF001 (as the plugin itself does)
    return plugin._get_config_option("receive-acl", None) is not None  # noqa: SLF001


def answers_last(plugin: Any) -> bool:
    """Say whether a topic plugin's answer is always the same of one client, user, topic and action.

    aMQTT's own two plugins compare these with the policy file alone. Another plugin may say so by
    the attribute ``answers_last``, if it awaits nothing.
    """
    if type(plugin) in (TopicTabooPlugin, TopicAccessControlListPlugin):
        return True
    can_wait = handler_of(plugin, "topic_filtering").can_wait
    return getattr(plugin, "answers_last", False) is True and not can_wait


def warn_of_unknown_events(plugins: Iterable[Any], logger: logging.Logger) -> None:
    """Warn of coroutines that are named like the handler of an event that does not exist.

    aMQTT finds its handlers by name and ignores the others.
    """
    known = [f"on_{event}" for event in EVENTS]
    for plugin in plugins:
        for name in dir(type(plugin)):
            if not name.startswith("on_") or name in known:
                continue
            if iscoroutinefunction(getattr(type(plugin), name)):
                logger.warning(
                    "plugin %s: no event calls %s; allowed: %s",
                    type(plugin).__name__,
                    name,
                    suggest(name, known),
                )


def counts_packets(plugin: Any) -> bool:
    """Say whether a plugin is aMQTT's own `$SYS` plugin, which only counts packets.

    The broker has counted them already; see `share_counts`.
    """
    return type(plugin) is BrokerSysPlugin and isinstance(plugin._stats, dict)  # noqa: SLF001


def share_counts(plugin: Any, counters: Counters) -> None:
    """Give aMQTT's `$SYS` plugin the broker's counters before each of its publications."""
    stats = plugin._stats  # noqa: SLF001 (the plugin has no public access)
    publish = plugin.broadcast_dollar_sys_topics

    def update_and_publish() -> None:
        stats[STAT_BYTES_RECEIVED] = counters.bytes_received
        stats[STAT_BYTES_SENT] = counters.bytes_sent
        stats[STAT_MSG_RECEIVED] = counters.packets_received
        stats[STAT_MSG_SENT] = counters.packets_sent
        stats[STAT_PUBLISH_RECEIVED] = counters.publish_received
        stats[STAT_PUBLISH_SENT] = counters.publish_sent
        publish()

    # The plugin schedules this method by its name.
    plugin.broadcast_dollar_sys_topics = update_and_publish
