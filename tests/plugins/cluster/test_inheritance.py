"""What a dead node has left is done once, also where the engine fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.broker.mqtt.packets import Will
from penstock.plugins.cluster.engine import Absence, Row
from penstock.plugins.cluster.frames import FrameBuffer, Lane
from penstock.plugins.cluster.inheritance import Inheritance
from penstock.plugins.cluster.node_sink import Shared
from penstock.plugins.cluster.node_wills import written
from penstock.plugins.redis.errors import StorageError

SHARE = Lane(5, "$share/g/t")


def entry(n_messages: int) -> bytes:
    """Return the data of an entry for a shared subscription."""
    buffer = FrameBuffer()
    buffer.add(SHARE, 1, n_messages, b"packets")
    return buffer.take()


class Engine:
    """Fails at one step.

    Attributes:
        fails_at: the step at which it fails next; "" for none.
    """

    def __init__(self, fails_at: str) -> None:
        self.fails_at = fails_at

    def _look(self, step: str) -> None:
        if step == self.fails_at:
            self.fails_at = ""
            raise StorageError("away")

    async def inbox_of(self, node: str, epoch: int) -> AsyncIterator[tuple[Row, bytes]]:
        """Yield two pages."""
        yield Row(node, epoch, 1), entry(1)
        self._look("second page")
        yield Row(node, epoch, 2), entry(2)

    async def wills_of(self, _node: str, _epoch: int) -> dict[bytes, bytes]:
        """Return one that is delayed."""
        self._look("wills")
        return {b"x": written(Will("gone", b"", properties={"will_delay_interval": 9}), "o")}

    async def absence(self, _client_id: str) -> Absence:
        """Say that the client's session has ended."""
        self._look("absence")
        return Absence(None, None, None)

    def forget_will(self, *_: Any) -> asyncio.Future[Any]:
        """Forget one."""
        return asyncio.get_running_loop().create_future()


class Groups:
    """Takes messages.

    Attributes:
        given: how many came together.
    """

    def __init__(self) -> None:
        self.given: list[int] = []

    def give_back(self, shared: Shared) -> None:
        """Take messages, which are stored at once."""
        self.given.append(shared.n_messages)
        shared.done(0)


@pytest.mark.parametrize("step", ["", "second page", "wills", "absence"])
async def test_messages_go_to_other_members_once(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duty is begun anew where the engine cannot be asked."""
    groups, engine, wills = Groups(), Engine(step), list[bytes]()
    heir: Any = Inheritance(engine, groups, None)  # type: ignore[arg-type]

    async def send(packet: bytes, _qos: int, _n: int, done: Callable[[int], None]) -> None:
        wills.append(packet)
        done(1)

    monkeypatch.setattr(heir._forwarder, "send", send)
    if step:
        with pytest.raises(StorageError):
            await heir.take("dead", 3)
    await heir.take("dead", 3)
    assert groups.given == [1, 2]
    assert len(wills) == heir.n_wills == 1
