"""Whose mailboxes get a message: the subscriptions of kept sessions, of all nodes; pure.

Theory of operation. A session that may outlive its connection has a mailbox in the engine, and
every node puts there what its filters match. Who subscribes to what is told among the changes of
routes, by the node that has the session. A name behind a byte 0 is a client and a filter, with
another such byte between them; the value is the origin of its session, or ``-`` and that for the
end of the subscription: so what was told of an earlier session of a client does no harm to the
next one. The node that has a session knows best, and takes what others have told of it for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.broker.mqtt.topics import SHARE_PREFIX, drop_levels, matching_nodes, node_of

MARK: Final = "\0"
"""Names of changes that are about sessions begin so."""

_SLICE: Final = 200
_MOST_TOPICS: Final = 10_000
"""Topics whose mailboxes are remembered."""


class Mailbox:
    """A kept session, as a node that puts messages there knows it.

    Attributes:
        client_id: Client Identifier.
        bucket: the common beginning of its keys.
        filters: its topic filters, each with the origin of the session that has it.
        is_away: whether it had no connection when the engine last said, and has not subscribed or
            come back since.
    """

    __slots__ = ("bucket", "client_id", "filters", "is_away")

    def __init__(self, client_id: str, bucket: str) -> None:
        self.client_id = client_id
        self.bucket = bucket
        self.filters: dict[str, str] = {}
        self.is_away = False


class _Node(dict[str, "_Node"]):
    """One topic level: a table of the next ones, and the mailboxes of the filter that ends here."""

    __slots__ = ("boxes",)

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[Mailbox, None] = {}


class MailRoutes:
    """The mailboxes of all kept sessions.

    Args:
        bucket: returns the common beginning of a client's keys.
        on_filter: is told of each filter that the first mailbox has, and that none has any more.
        on_share: is told of a shared subscription, a mailbox, and whether that is a member.

    Attributes:
        boxes: by client.
        own: clients whose sessions this node has.
    """

    def __init__(
        self,
        bucket: Callable[[str], str],
        on_filter: Callable[[str, bool], None],
        on_share: Callable[[str, Mailbox, bool], None],
    ) -> None:
        self.boxes: dict[str, Mailbox] = {}
        self.own: Collection[str] = ()
        self._bucket = bucket
        self._on_filter = on_filter
        self._on_share = on_share
        self._root = _Node()
        self._found: dict[str, Mapping[str, Sequence[str]]] = {}

    def changed(self, name: str, value: str) -> None:
        """Take a change that was told among those of routes."""
        _, client_id, topic_filter = name.split(MARK, 2)
        if client_id not in self.own:
            self.set(client_id, topic_filter, value)

    def set(self, client_id: str, topic_filter: str, value: str) -> None:
        """Give a session a filter, or take it away.

        Args:
            client_id: Client Identifier.
            topic_filter: may be a shared subscription.
            value: the origin of the session; behind ``-`` for the end of the subscription.
        """
        box = self.boxes.get(client_id)
        if not value.startswith("-"):
            if box is None:
                box = self.boxes[client_id] = Mailbox(client_id, self._bucket(client_id))
            if topic_filter not in box.filters:
                self._add(box, topic_filter)
            box.filters[topic_filter] = value
            box.is_away = False  # as far as is known
        elif box is not None and box.filters.get(topic_filter) == value[1:]:
            del box.filters[topic_filter]
            if not box.filters:
                del self.boxes[client_id]
            self._remove(box, topic_filter)

    def replaced(self, found: Iterable[tuple[str, str]]) -> Iterator[None]:
        """Take all subscriptions as the engine has them, by names and values; yield now and then.

        What is yielded says that others may have their turn.
        """
        known: dict[str, dict[str, str]] = {}
        for name, value in found:
            client_id, _, topic_filter = name.partition(MARK)
            known.setdefault(client_id, {})[topic_filter] = value
        for n, client_id in enumerate({*self.boxes, *known}):
            if n % _SLICE == _SLICE - 1:
                yield
            if client_id in self.own:
                continue
            filters = known.get(client_id, {})
            box = self.boxes.get(client_id)
            for topic_filter, value in [] if box is None else [*box.filters.items()]:
                if topic_filter not in filters:
                    self.set(client_id, topic_filter, f"-{value}")
            for topic_filter, value in filters.items():
                self.set(client_id, topic_filter, value)

    def _add(self, box: Mailbox, topic_filter: str) -> None:
        if topic_filter.startswith(SHARE_PREFIX):
            self._on_share(topic_filter, box, True)
            return
        self._found.clear()
        node = node_of(self._root, topic_filter)
        node.boxes[box] = None
        if len(node.boxes) == 1:
            self._on_filter(topic_filter, True)

    def _remove(self, box: Mailbox, topic_filter: str) -> None:
        if topic_filter.startswith(SHARE_PREFIX):
            self._on_share(topic_filter, box, False)
            return
        self._found.clear()
        boxes = node_of(self._root, topic_filter).boxes
        del boxes[box]
        if not boxes:
            drop_levels(self._root, topic_filter, lambda node: node or node.boxes)
            self._on_filter(topic_filter, False)

    def of(self, topic: str) -> Mapping[str, Sequence[str]]:
        """Return the clients whose mailboxes get the messages of a topic, by their buckets."""
        found = self._found.get(topic)
        if found is None:
            boxes: dict[Mailbox, None] = {}
            for node in matching_nodes(self._root, topic):
                boxes.update(node.boxes)
            if len(self._found) >= _MOST_TOPICS:
                self._found.clear()
            clients: dict[str, list[str]] = {}
            for box in boxes:
                clients.setdefault(box.bucket, []).append(box.client_id)
            found = self._found[topic] = clients
        return found
