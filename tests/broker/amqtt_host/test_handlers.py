from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from amqtt.contexts import Action, BaseContext
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.plugins.authentication import AnonymousAuthPlugin, FileAuthPlugin
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
from amqtt.plugins.logging_amqtt import EventLoggerPlugin, PacketLoggerPlugin
from amqtt.plugins.sys.broker import BrokerSysPlugin
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin, TopicTabooPlugin

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
from penstock.broker.counters import Counters

QUIET = logging.getLogger("test.amqtt.quiet")
QUIET.setLevel(logging.INFO)
LOUD = logging.getLogger("test.amqtt.loud")
LOUD.setLevel(logging.DEBUG)


def made(cls: type[Any], logger: logging.Logger = QUIET, **config: Any) -> Any:
    """Return a plugin with a configuration, as aMQTT's manager makes it."""
    context = BaseContext()
    context.config = cls.Config(**config)
    context.logger = logger
    return cls(context)


class OwnAuth(BaseAuthPlugin):
    """Answers with what it has and what its base says."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Ask the base class."""
        return await super().authenticate(session=session)


class BetweenTheTwo(AnonymousAuthPlugin, OwnAuth):
    """A stock method whose next class may wait."""


class Handlers(BasePlugin[Any]):
    """Handlers that wait in every way there is, and one that does not."""

    async def waits(self) -> None:
        """Wait for a task."""
        await asyncio.sleep(0)

    async def waits_in_a_block(self) -> None:
        """Wait for a lock."""
        async with asyncio.Lock():
            pass

    async def waits_in_a_loop(self) -> None:
        """Wait for each item."""
        async for _ in _numbers():
            pass

    async def waits_inside(self) -> list[int]:
        """Wait within a comprehension."""
        return [number async for number in _numbers()]

    async def goes_through(self) -> int:
        """Do not wait."""
        return 7

    async def defines_what_waits(self) -> Callable[[], Awaitable[None]]:
        """Make a coroutine function without running it."""

        async def later() -> None:
            await asyncio.sleep(0)

        return later


async def _numbers() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("name", "can_wait"),
    [
        ("waits", True),
        ("waits_in_a_block", True),
        ("waits_in_a_loop", True),
        ("waits_inside", True),
        ("goes_through", False),
        ("defines_what_waits", False),
    ],
)
def test_whether_a_coroutine_can_wait_is_read_from_its_code(name: str, can_wait: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """A coroutine that awaits nothing runs at once; every other gets a task."""
    assert handler_of(made(Handlers), name).can_wait is can_wait


@pytest.mark.parametrize(
    ("cls", "name", "can_wait"),
    [
        (AnonymousAuthPlugin, "authenticate", False),
        (FileAuthPlugin, "authenticate", False),
        (TopicTabooPlugin, "topic_filtering", False),
        (TopicAccessControlListPlugin, "topic_filtering", False),
        (BaseTopicPlugin, "topic_filtering", False),
        (EventLoggerPlugin, "on_broker_client_connected", False),
        (BrokerSysPlugin, "on_broker_client_connected", False),
        (BrokerSysPlugin, "on_broker_post_start", True),
        (OwnAuth, "authenticate", True),
        (BetweenTheTwo, "authenticate", True),
    ],
)
def test_stock_methods_that_only_ask_their_base_do_not_wait(
    cls: type[Any],
    name: str,
    can_wait: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """A stock method awaits its base alone; what stands between them decides."""
    assert handler_of(made(cls), name).can_wait is can_wait


def test_only_the_check_of_a_password_file_is_slow() -> None:
    """Checking a hash goes to a thread, so that no other client waits for it."""
    assert handler_of(made(FileAuthPlugin), "authenticate").is_slow
    assert not handler_of(made(AnonymousAuthPlugin), "authenticate").is_slow


def test_handler_is_named_after_plugin_and_method() -> None:
    """Logs and counters say whose fault it was."""
    assert handler_of(made(Handlers), "waits").name == "Handlers.waits"


def test_coroutine_without_a_wait_is_run_to_its_end() -> None:
    """The result is there at once, and what is raised comes through."""
    assert run_now(made(Handlers).goes_through()) == 7
    with pytest.raises(RuntimeError, match="has waited"):
        run_now(made(Handlers).waits())


def stock(logger: logging.Logger) -> list[Any]:
    """Return the plugins of aMQTT's own file."""
    return [
        made(EventLoggerPlugin, logger),
        made(PacketLoggerPlugin, logger),
        made(AnonymousAuthPlugin, logger),
        made(BrokerSysPlugin, logger),
    ]


def test_stock_plugins_handle_no_packet_above_debug() -> None:
    """With aMQTT's own list and the usual log level, nothing is called for a packet."""
    handlers = event_handlers(stock(QUIET))
    assert {event for event, found in handlers.items() if found} == {
        BrokerEvents.PRE_START,
        BrokerEvents.POST_START,
        BrokerEvents.PRE_SHUTDOWN,
        BrokerEvents.CLIENT_CONNECTED,
        BrokerEvents.CLIENT_DISCONNECTED,
    }
    names = [handler.name for handler in handlers[BrokerEvents.CLIENT_CONNECTED]]
    assert names == [
        "EventLoggerPlugin.on_broker_client_connected",
        "BrokerSysPlugin.on_broker_client_connected",
    ]


def test_stock_loggers_are_told_everything_at_debug() -> None:
    """At debug level both loggers hear of each packet."""
    handlers = event_handlers(stock(LOUD))
    assert [handler.name for handler in handlers[MQTTEvents.PACKET_SENT]] == [
        "EventLoggerPlugin.on_mqtt_packet_sent",
        "PacketLoggerPlugin.on_mqtt_packet_sent",
    ]
    assert handlers[BrokerEvents.MESSAGE_RECEIVED]


class OwnPacketLogger(PacketLoggerPlugin):
    """A user's class made from the stock logger."""


class OwnSys(BrokerSysPlugin):
    """A user's class made from the stock `$SYS` plugin."""


def test_classes_made_from_stock_ones_are_told_packets() -> None:
    """What a user has added to a stock plugin is not known: it hears everything."""
    handlers = event_handlers([made(OwnPacketLogger), made(OwnSys)])
    assert len(handlers[MQTTEvents.PACKET_RECEIVED]) == 2
    assert not counts_packets(made(OwnSys))


def test_sys_plugin_publishes_the_brokers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock plugin's figures are the broker's own at the time it publishes."""
    seen: list[dict[str, int]] = []
    monkeypatch.setattr(
        BrokerSysPlugin, "broadcast_dollar_sys_topics", lambda self: seen.append(dict(self._stats))
    )
    plugin = made(BrokerSysPlugin)
    run_now(plugin.on_broker_pre_start())
    counters = Counters()
    share_counts(plugin, counters)
    counters.bytes_received, counters.bytes_sent = 1, 2
    counters.packets_received, counters.packets_sent = 3, 4
    counters.publish_received, counters.publish_sent = 5, 6
    plugin.broadcast_dollar_sys_topics()
    assert seen[0]["bytes_received"] == 1
    assert seen[0]["bytes_sent"] == 2
    assert seen[0]["messages_received"] == 3
    assert seen[0]["messages_sent"] == 4
    assert seen[0]["publish_received"] == 5
    assert seen[0]["publish_sent"] == 6


@pytest.mark.parametrize(
    ("config", "actions"),
    [
        ({}, [Action.SUBSCRIBE]),
        ({"acl": {"u": ["a"]}}, [Action.SUBSCRIBE]),
        ({"publish_acl": {"u": ["a"]}}, [Action.SUBSCRIBE, Action.PUBLISH]),
    ],
)
def test_access_control_list_is_asked_only_for_what_it_lists(
    config: dict[str, Any], actions: list[Action]
) -> None:
    """Where aMQTT's list lets every delivery pass, no delivery asks for it."""
    plugin = made(TopicAccessControlListPlugin, **config)
    assert [action for action in Action if decides(plugin, action)] == actions


def test_other_topic_plugins_are_asked_for_everything() -> None:
    """What a plugin would refuse is not known."""
    assert all(decides(made(TopicTabooPlugin), action) for action in Action)


class SaysSo(TopicTabooPlugin):
    """Compares names alone, and says so."""

    answers_last = True


class SaysSoAndWaits(SaysSo):
    """Says what cannot be, as it waits for its answer."""

    async def topic_filtering(self, **asked: Any) -> bool:
        """Wait."""
        await asyncio.sleep(0)
        return bool(asked)


class SaysNothing(TopicTabooPlugin):
    """A class of somebody's own."""


@pytest.mark.parametrize(
    ("cls", "lasts"),
    [
        (TopicTabooPlugin, True),
        (TopicAccessControlListPlugin, True),
        (SaysSo, True),
        (SaysSoAndWaits, False),
        (SaysNothing, False),
    ],
)
def test_whose_answers_last(cls: type[Any], lasts: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    """AMQTT's own two plugins compare names with the policy file; others have to say it."""
    assert answers_last(made(cls)) is lasts


class Misspelt(BasePlugin[Any]):
    """Has one handler that no event calls."""

    async def on_broker_mesage_received(self, **told: Any) -> None:
        """Never run."""

    async def on_broker_message_received(self, **told: Any) -> None:
        """Handle the event."""

    def on_a_table(self) -> None:
        """No coroutine, so no handler."""


def test_handler_of_no_event_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt handler is named with the nearest real one."""
    warn_of_unknown_events([made(Misspelt), made(EventLoggerPlugin)], QUIET)
    (record,) = caplog.records
    assert "plugin Misspelt: no event calls on_broker_mesage_received" in record.getMessage()
    assert "(perhaps on_broker_message_received)" in record.getMessage()
