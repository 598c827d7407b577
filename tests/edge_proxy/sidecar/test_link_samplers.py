from __future__ import annotations

from penstock.broker.link import Link
from penstock.edge_proxy.sidecar.link_samplers import LinkSamplers
from tests.helpers.guard import Faults, NoFaults
from tests.helpers.samplers import NotingSampler


def test_each_sampler_is_asked_in_its_own_period() -> None:
    """From the connection on, every period; one without a period never."""
    fast, slow, none = NotingSampler(1.0), NotingSampler(2.5), NotingSampler(None)
    samplers = LinkSamplers((fast, slow, none), Link("c"), NoFaults())
    before = samplers.next_at
    assert before is None
    samplers.connected(10.0)
    asked: list[float] = []
    while (now := samplers.next_at) is not None and now < 16.0:
        samplers.sample(4, now)
        asked.append(now)
    assert asked == [11.0, 12.0, 12.5, 13.0, 14.0, 15.0]
    assert fast.times[1:] == [11.0, 12.0, 13.0, 14.0, 15.0]
    assert slow.told[1:] == [("sample", "c", 4, 0)] * 2
    assert slow.times[1:] == [12.5, 15.0]
    assert none.told == [("connected", "c")]


def test_a_late_round_is_not_made_up_for() -> None:
    """After a pause there is one look, not one for each period that was missed."""
    sampler = NotingSampler(1.0)
    samplers = LinkSamplers((sampler,), Link("c"), NoFaults())
    samplers.connected(10.0)
    samplers.sample(4, 20.0)
    assert samplers.next_at == 20.0
    samplers.sample(4, 20.0)
    assert samplers.next_at == 21.0


def test_news_of_any_sampler_is_news() -> None:
    """The gate is asked again when one of them has a new estimate."""
    quiet, loud = NotingSampler(1.0, has_news=True), NotingSampler(1.0, has_news=True)
    quiet.has_news = False
    samplers = LinkSamplers((loud, quiet), Link("c"), NoFaults())
    samplers.connected(10.0)
    assert samplers.acknowledged(7, 10.5)
    assert samplers.sample(4, 11.0)
    loud.has_news = False
    assert not samplers.acknowledged(8, 11.5)
    assert not samplers.sample(4, 12.0)


class Silent(NotingSampler):
    """A sampler whose methods return nothing at all."""

    def sample(self, link: Link, fileno: int, now: float) -> bool:  # noqa: ARG002
        """Return None."""
        return None  # type: ignore[return-value]

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:  # noqa: ARG002
        """Return None."""
        return None  # type: ignore[return-value]


def test_a_sampler_that_returns_nothing_has_no_news() -> None:
    """Neither the client nor the other samplers suffer from it."""
    loud = NotingSampler(1.0, has_news=True)
    samplers = LinkSamplers((Silent(1.0), loud), Link("c"), NoFaults())
    samplers.connected(10.0)
    assert samplers.acknowledged(7, 10.5)
    assert samplers.sample(4, 11.0)
    loud.has_news = False
    assert not samplers.acknowledged(8, 11.5)
    assert not samplers.sample(4, 12.0)
    assert not Silent(1.0).acknowledged_run(Link("c"), 1, 3, 12.0)


def test_a_sampler_that_raises_is_told_and_the_others_go_on() -> None:
    """A plugin's fault stops no delivery and no other plugin."""
    broken, whole = (
        NotingSampler(1.0, has_news=True, is_broken=True),
        NotingSampler(1.0, has_news=True),
    )
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
    assert samplers.next_at is None
