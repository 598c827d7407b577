"""Retained messages of the cloud that the site keeps, and which of them the cloud has cleared.

Theory of operation. What comes down retained is retained by the site's broker, also while the cloud
cannot be reached. A clear that comes down clears it there. Where the cloud's broker has lost the
session, a clear may be missed. Then retained messages are sent again for each filter that is
subscribed to, and what the site has and does not get again is to be cleared.

MQTT does not tell when all of them have come. A *marker* does: a retained message that the uplink
has just published to a topic of its own, of which the filter is the last one in SUBSCRIBE. Brokers
that send retained messages in the order of the filters, as mosquitto and Penstock do, send
the marker last. Penstock may withhold a large message and let a small one pass. So what was large
when it came is not cleared before a second marker, which is as large as the largest of them. A
message that comes even later is retained again: a clear too early heals itself.

The marker has QoS 1, as QoS 0 would overtake messages that wait for acknowledgements. Where the
cloud does not let it pass, nothing is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LARGE_BYTES: Final = 10_000
"""Payload bytes from which on a message may be withheld by the cloud: Penstock's default."""


class Marker(NamedTuple):
    """A retained message for the uplink's own topic.

    Attributes:
        payload: of the message.
        topic_filters: of the cloud, to be subscribed to in the same SUBSCRIBE before the marker's
            topic; none where they are subscribed to already.
    """

    payload: bytes
    topic_filters: Sequence[str]


class Outcome(NamedTuple):
    """What follows from a marker that has come.

    Attributes:
        clear: topics of the site that the cloud has cleared.
        complete: filters of which everything retained has come.
        marker: to be sent next; None for none.
    """

    clear: Sequence[str]
    complete: Sequence[str]
    marker: Marker | None = None


@dataclass(slots=True)
class _Round:
    """One marker on its way.

    Attributes:
        payload: of the marker.
        topic_filters: that wait for it.
        missing: topics of the site that have not come again, to the size of what is retained.
    """

    payload: bytes
    topic_filters: Sequence[str]
    missing: dict[str, int]


class RetainedCache:
    """Which retained messages of the site have still to come again from the cloud."""

    def __init__(self, new_token: Callable[[], bytes]) -> None:
        """Begin with nothing on its way.

        Args:
            new_token: returns a payload that no other marker has.
        """
        self._new_token = new_token
        self._rounds: list[_Round] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a marker is on its way."""
        return bool(self._rounds)

    def begin(self, topic_filters: Sequence[str], retained: Iterable[tuple[str, int]]) -> Marker:
        """Begin to ask for retained messages.

        Args:
            topic_filters: of the cloud, subscribed to so that retained messages are sent.
            retained: (topic, payload bytes) of each message that the site has retained of these
                filters and that came from the cloud.
        """
        return self._send(topic_filters, dict(retained), 0)

    def _send(self, topic_filters: Sequence[str], missing: dict[str, int], n_bytes: int) -> Marker:
        payload = self._new_token().ljust(n_bytes)
        self._rounds.append(_Round(payload, topic_filters, missing))
        return Marker(payload, () if n_bytes else topic_filters)

    def came(self, topic: str) -> None:
        """Note a retained message from the cloud, by its topic at the site."""
        for one in self._rounds:
            one.missing.pop(topic, None)

    def marker_came(self, payload: bytes) -> Outcome:
        """Take the retained message of the uplink's own topic.

        Returns:
            What follows; nothing where it is an older marker, which may still be on its way.
        """
        n_done = next(
            (n for n, one in enumerate(self._rounds, 1) if one.payload == payload),
            0,
        )
        done, self._rounds = self._rounds[:n_done], self._rounds[n_done:]
        clear: dict[str, None] = {}
        complete: list[str] = []
        large: dict[str, int] = {}
        waiting: list[str] = []
        for one in done:
            left = {
                topic: n_bytes
                for topic, n_bytes in one.missing.items()
                if n_bytes >= LARGE_BYTES and len(payload) < n_bytes
            }
            clear.update(dict.fromkeys(one.missing.keys() - left.keys()))
            large |= left
            (waiting if left else complete).extend(one.topic_filters)
        if not large:
            return Outcome(sorted(clear), complete)
        return Outcome(sorted(clear), complete, self._send(waiting, large, max(large.values())))

    def give_up(self) -> Sequence[str]:
        """Clear nothing: the cloud does not let a marker pass.

        Returns:
            The filters that have waited for one.
        """
        rounds, self._rounds = self._rounds, []
        return [name for one in rounds for name in one.topic_filters]

    def connection_lost(self) -> None:
        """Forget what is on its way: the filters will be asked for again."""
        self._rounds.clear()
