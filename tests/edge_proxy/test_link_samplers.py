from __future__ import annotations

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.edge_proxy.link_samplers import LinkSamplers
from tests.helpers.guard import Faults, NoFaults


class Sampler(LinkSampler):
    """A sampler that takes note of what it is told."""

    def __init__(self, period: float | None = 1.0, *, is_broken: bool = False) -> None:
        self.period = period
        self.told: list[tuple[object, ...]] = []
        self.has_news = True
        self._is_broken = is_broken

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        if self._is_broken:
            raise RuntimeError(what[0])

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Take note."""
        self._tell("sample", link.client_id, fileno, now)
        return self.has_news

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Take note."""
        self._tell("sent", link.client_id, packet_id, payload_bytes, now)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Take note."""
        self._tell("acknowledged", link.client_id, packet_id, now)
        return self.has_news

    def connected(self, link: Link, now: float) -> None:
        """Take note."""
        self._tell("connected", link.client_id, now)

    def forget(self, link: Link) -> None:
        """Take note."""
        self._tell("forget", link.client_id)


def test_each_sampler_is_asked_in_its_own_period() -> None:
    """From the connection on, every period; one without a period never."""
    fast, slow, none = Sampler(1.0), Sampler(2.5), Sampler(None)
    samplers = LinkSamplers((fast, slow, none), Link("c"), NoFaults())
    assert samplers.next_deadline() is None
    samplers.connected(10.0)
    asked = []
    while (now := samplers.next_deadline()) is not None and now < 16.0:
        samplers.sample(4, now)
        asked.append(now)
    assert asked == [11.0, 12.0, 12.5, 13.0, 14.0, 15.0]
    assert [told[3] for told in fast.told[1:]] == [11.0, 12.0, 13.0, 14.0, 15.0]
    assert slow.told[1:] == [("sample", "c", 4, 12.5), ("sample", "c", 4, 15.0)]
    assert none.told == [("connected", "c", 10.0)]


def test_a_late_round_is_not_made_up_for() -> None:
    """After a pause there is one look, not one for each period that was missed."""
    sampler = Sampler(1.0)
    samplers = LinkSamplers((sampler,), Link("c"), NoFaults())
    samplers.connected(10.0)
    samplers.sample(4, 20.0)
    assert samplers.next_deadline() == 20.0
    samplers.sample(4, 20.0)
    assert samplers.next_deadline() == 21.0


def test_news_of_any_sampler_is_news() -> None:
    """The gate is asked again when one of them has a new estimate."""
    quiet, loud = Sampler(), Sampler()
    quiet.has_news = False
    samplers = LinkSamplers((loud, quiet), Link("c"), NoFaults())
    samplers.connected(10.0)
    assert samplers.acknowledged(7, 10.5)
    assert samplers.sample(4, 11.0)
    loud.has_news = False
    assert not samplers.acknowledged(8, 11.5)
    assert not samplers.sample(4, 12.0)


class Silent(Sampler):
    """A sampler whose methods return nothing at all."""

    def sample(self, link: Link, fileno: int, now: float) -> bool:  # noqa: ARG002
        """Return None."""
        return None  # type: ignore[return-value]

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:  # noqa: ARG002
        """Return None."""
        return None  # type: ignore[return-value]


def test_a_sampler_that_returns_nothing_has_no_news() -> None:
    """Neither the client nor the other samplers suffer from it."""
    loud = Sampler()
    samplers = LinkSamplers((Silent(), loud), Link("c"), NoFaults())
    samplers.connected(10.0)
    assert samplers.acknowledged(7, 10.5)
    assert samplers.sample(4, 11.0)
    loud.has_news = False
    assert not samplers.acknowledged(8, 11.5)
    assert not samplers.sample(4, 12.0)
    assert not Silent().acknowledged_run(Link("c"), 1, 3, 12.0)


def test_a_sampler_that_raises_is_told_and_the_others_go_on() -> None:
    """A plugin's fault stops no delivery and no other plugin."""
    broken, whole = Sampler(is_broken=True), Sampler()
    guard = Faults()
    samplers = LinkSamplers((broken, whole), Link("c"), guard)
    samplers.connected(10.0)
    samplers.sent(7, 100, 10.0)
    assert samplers.acknowledged(7, 10.5)
    assert samplers.sample(4, 11.0)
    samplers.forget()
    assert [str(error) for error in guard.errors] == [
        "connected",
        "sent",
        "acknowledged",
        "sample",
        "forget",
    ]
    assert whole.told == broken.told
    assert samplers.next_deadline() is None
