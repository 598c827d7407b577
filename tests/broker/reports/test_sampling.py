from __future__ import annotations

from collections.abc import Generator

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.reports.periodic_work import PeriodicWork
from penstock.broker.reports.sampling import MOST_SEEN, SLICE, Sampling
from penstock.broker.timers import Timers
from tests.helpers.virtual import VirtualBroker


class Sampler(LinkSampler):
    """Notes whom it sampled, when."""

    period: float | None = 10.0

    def __init__(self) -> None:
        self.samples: list[tuple[str, int, float]] = []
        self.fails = False
        self.has_news = False

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Note it."""
        self.samples.append((link.client_id, fileno, now))
        if self.fails:
            raise OSError(9, "bad file descriptor")
        return self.has_news


def started(n_clients: int) -> tuple[VirtualBroker, Sampler, list[str]]:
    """Return a broker whose clients are being sampled."""
    broker = VirtualBroker()
    names = [f"c{number}" for number in range(n_clients)]
    for number, name in enumerate(names):
        client = broker.connect(name)
        client.subscribe("t")
        setattr(client, "fileno", number)  # noqa: B010 (the transport has it, the client not)
    sampler = Sampler()
    Sampling(broker.core, sampler, 10.0).start(broker.now)
    return broker, sampler, names


def test_every_connected_subscriber_is_sampled_once_in_each_period() -> None:
    """However many there are, in slices over the period."""
    broker, sampler, names = started(2 * SLICE + 5)
    broker.advance(19.9)
    assert sorted(name for name, _, _ in sampler.samples) == sorted(names)
    assert sampler.samples[3][:2] == ("c3", 3)
    times = {now for _, _, now in sampler.samples}
    assert len(times) == 3
    assert max(times) - min(times) < 10.0
    broker.advance(10)
    assert len(sampler.samples) == 2 * len(names)


def test_who_only_publishes_is_not_sampled() -> None:
    """There is nothing to decide about the path to it, until it subscribes."""
    broker, sampler, _ = started(1)
    publisher = broker.connect("publisher")
    setattr(publisher, "fileno", 1)  # noqa: B010 (the transport has it, the client not)
    broker.advance(10.5)
    assert [name for name, _, _ in sampler.samples] == ["c0"]
    publisher.subscribe("t")
    broker.advance(10)
    assert [name for name, _, _ in sampler.samples] == ["c0", "c0", "publisher"]


def test_many_who_only_publish_delay_nobody() -> None:
    """They are passed over in larger steps, and take no time of the period."""
    broker, sampler, _ = started(1)
    for number in range(2 * MOST_SEEN + 1):
        broker.connect(f"publisher-{number}")
    last = broker.connect("last")
    last.subscribe("t")
    setattr(last, "fileno", 1)  # noqa: B010 (the transport has it, the client not)
    broker.advance(19.9)
    assert [name for name, _, _ in sampler.samples] == ["c0", "last"]
    assert sampler.samples[1][2] < sampler.samples[0][2] + 5


def test_clients_that_have_gone_are_not_sampled() -> None:
    """Not those that were gone at the start of the round, nor those that went in it."""
    broker, sampler, _ = started(2)
    session = broker.session("c0")
    assert session.client is not None
    session.client.outgoing.served.lose()
    broker.advance(10.5)
    assert [name for name, _, _ in sampler.samples] == ["c1"]


def test_a_sampler_that_raises_is_counted_and_called_again() -> None:
    """E3: one client's bad socket does not end the sampling of the others."""
    broker, sampler, _ = started(3)
    sampler.fails = True
    broker.advance(10.5)
    assert len(sampler.samples) == 3
    assert broker.core.counters.extension_errors == {"Sampler": 3}
    broker.advance(10)
    assert len(sampler.samples) == 6


def test_news_of_a_link_reaches_the_outbox() -> None:
    """The gate is asked again for what that client has withheld."""
    broker, sampler, _ = started(1)
    sampler.has_news = True
    session = broker.session("c0")
    session.outbox._ask = False
    broker.advance(10.0)
    assert session.outbox._ask


class Work:
    """Three slices in each round, 1 s apart; notes when each is done."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.errors: list[Exception] = []
        self.begun: list[float] = []
        self.done: list[float] = []
        self.fails = False
        self.seconds = 1.0
        self.periodic = PeriodicWork(self.timers, self._work, self.errors.append)

    def _work(self, now: float) -> Generator[float, float, None]:
        self.begun.append(now)
        for n_left in (2, 1, 0):
            if self.fails:
                raise OSError(24, "Too many open files")
            self.done.append(now)
            if n_left:
                now = yield now + self.seconds

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while (at := self.timers.next_deadline()) is not None and at <= end:
            self.timers.run(at)


def test_each_round_is_done_in_slices_and_begins_a_period_after_the_last() -> None:
    """The first one when it was asked for."""
    work = Work()
    work.periodic.start(5.0, 10.0)
    work.run_until(26.0)
    assert work.begun == [5.0, 15.0, 25.0]
    assert work.done == [5.0, 6.0, 7.0, 15.0, 16.0, 17.0, 25.0, 26.0]


def test_a_round_may_begin_at_once() -> None:
    """Its first slice is done before the call returns."""
    work = Work()
    work.periodic.begin(5.0, 10.0)
    assert work.done == [5.0]
    work.run_until(15.0)
    assert work.begun == [5.0, 15.0]


def test_a_round_that_takes_longer_than_a_period_is_finished_first() -> None:
    """Then the next begins at once: none is cut short, none runs beside another."""
    work = Work()
    work.seconds = 6.0
    work.periodic.start(0.0, 10.0)
    work.run_until(24.0)
    assert work.done == [0.0, 6.0, 12.0, 12.0, 18.0, 24.0, 24.0]
    assert work.begun == [0.0, 12.0, 24.0]


def test_a_slice_that_raises_ends_its_round_and_not_the_next_ones() -> None:
    """One moment without files must not stop the work for good."""
    work = Work()
    work.periodic.start(0.0, 10.0)
    work.run_until(0.5)
    work.fails = True
    work.run_until(10.5)
    work.fails = False
    work.run_until(22.5)
    assert work.begun == [0.0, 10.0, 20.0]
    assert work.done == [0.0, 20.0, 21.0, 22.0]
    assert [type(error) for error in work.errors] == [OSError, OSError]
