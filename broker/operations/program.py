"""What operations need of the program around the core; its server fills it in."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.broker.operations_contract import Reloaded

if TYPE_CHECKING:
    from penstock.broker.durable.commits import Commits
    from penstock.broker.extensions import Plugin
    from penstock.broker.network.transport import MqttProtocol


def _call(call: Callable[[], Any]) -> Any:
    return call()


def _drop(coroutine: Coroutine[Any, Any, None]) -> None:
    with contextlib.closing(coroutine):
        pass


async def _reload_nothing() -> Reloaded:
    return Reloaded()


@dataclass(eq=False, slots=True)
class Program:
    """The program around a core; as it is, there is none, as in tests of the core.

    Attributes:
        started_at: monotonic seconds.
        memory_bytes: what the process may use.
        plugins: by their names in the policy file.
        take_turn: calls into the core from outside of any connection, does what that caused, and
            returns the answer; None where the call failed.
        state: the database of sessions and messages; None without one.
    """

    _: KW_ONLY
    version: str = ""
    started_at: float = 0.0
    memory_bytes: int = 0
    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    take_turn: Callable[[Callable[[], Any]], Any] = _call
    spawn: Callable[[Coroutine[Any, Any, None]], None] = _drop
    protocols: Collection[MqttProtocol] = ()
    stop_listening: Callable[[], None] = lambda: None
    is_listening: Callable[[], bool] = lambda: True
    reload: Callable[[], Awaitable[Reloaded]] = _reload_nothing
    state: Commits | None = None
