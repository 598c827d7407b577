"""Link samplers whose samples a test gives."""

from __future__ import annotations

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link


class NotingSampler(LinkSampler):
    """A sampler that notes what it is told.

    Attributes:
        told: the (method, client identifier, remaining arguments without the time) of each call.
        times: the time of each call that has one, monotonic seconds.
        has_news: the result of `sample` and `acknowledged`.
    """

    def __init__(
        self, period: float | None = None, *, has_news: bool = False, is_broken: bool = False
    ) -> None:
        """Note from the first call on.

        Args:
            period: the seconds between two samples; None for none.
            has_news: the result of each call.
            is_broken: whether each call raises after it was noted.
        """
        self.period = period
        self.told: list[tuple[object, ...]] = []
        self.times: list[float] = []
        self.has_news = has_news
        self._is_broken = is_broken

    def _note(self, *what: object) -> None:
        self.told.append(what)
        if self._is_broken:
            raise RuntimeError(what[0])

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Note it, with the bytes that the link has unsent."""
        self.times.append(now)
        self._note("sample", link.client_id, fileno, link.unsent_bytes)
        return self.has_news

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Note it."""
        self.times.append(now)
        self._note("sent", link.client_id, packet_id, payload_bytes)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Note it."""
        self.times.append(now)
        self._note("acknowledged", link.client_id, packet_id)
        return self.has_news

    def connected(self, link: Link, now: float) -> None:
        """Note it."""
        self.times.append(now)
        self._note("connected", link.client_id)

    def forget(self, link: Link) -> None:
        """Note it."""
        self._note("forget", link.client_id)
