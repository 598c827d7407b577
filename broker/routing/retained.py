"""Retained messages: the last one of each topic, found by topic filter.

A subscription may match more of them than its client can take in a while. They are therefore
found by a walk that goes on level by level, whatever changes meanwhile: it costs its place in
the trie and no list. Who needs a table as it was when a walk came to it is the walk, so the first
change after that copies it, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from penstock.broker.message import Message
from penstock.broker.timers import Timer, Timers

RETAINED_BYTES: Final = 112
"""Memory that CPython takes for a retained message beside the message itself."""

RETAINED_BLOCKS: Final = 7
"""Small memory blocks of CPython that a retained message takes, with the last level of its
topic."""

EXPIRY_BYTES: Final = 520
"""Memory that CPython takes for the timer of a retained message that expires."""

LEVEL_BYTES: Final = 144
"""Memory that a topic level takes beside its text, once for all topics that begin with it."""

TABLE_BYTES: Final = 216
"""Memory that the table of next levels of a topic level takes. A level without next ones has none,
and the table of first levels does not count."""


_LEAST_PACKET_BYTES: Final = 8
"""Bytes of the shortest PUBLISH that is retained: of QoS 1, with one byte of topic and payload."""

_MOST_PER_BYTE: Final = 512
"""Memory that each byte of a PUBLISH can take when that is retained: the shortest packets, and a
topic whose levels have no text, take the most."""

Show: TypeAlias = Callable[[Message, int], Iterator[Message]]
"""Returns the forms in which a retained message is found below a prefix, one after another. The
number is that of the message: no other one that is retained while the process runs has it."""


class _Node:
    """One topic level.

    Attributes:
        children: by level, in order of `number`; replaced, not changed, where `is_walked`.
        is_walked: a walk may read `children`.
        message: the topic's retained message, or None.
        number: which set made this node; later ones have higher numbers.
        set_at: which set brought `message`.
    """

    __slots__ = ("children", "is_walked", "message", "number", "set_at")

    def __init__(self, number: int) -> None:
        self.children = _NO_CHILDREN
        self.is_walked = False
        self.message: Message | None = None
        self.number = number
        self.set_at = 0

    def own_children(self) -> dict[str, _Node]:
        """Return `children` for a change: a copy where a walk may read them, or none has any."""
        if self.is_walked or self.children is _NO_CHILDREN:
            self.children = dict(self.children)
            self.is_walked = False
        return self.children


_NO_CHILDREN: Final[dict[str, _Node]] = {}
"""The table of every level that has no next one; most topics end in such a level."""


class RetainedMessages:
    """The retained message of each topic (MQTT 5.0, 3.3.1.3).

    Invariant: `n_limited` and `n_bytes` are those of all messages in `by_topic` but the broker's
    own under `$SYS`, which no limit holds back, and of the levels of all topics but those under
    `$SYS`. A message that expires has a timer, which
    removes it [MQTT-3.3.2-5]; no other message has one.

    Attributes:
        by_topic: Topic Name to message; read it, change it only through `set` and `remove`.
        n_limited: messages that count towards the limit.
        n_bytes: about what these take of the memory, with the levels of their topics.
        level_bytes: the part of it that the levels take.
        on_change: called with the topic of each message that was set or removed, or None.
        expired_total: messages that left because their Message Expiry Interval had passed.
        most_removed: topics that `removed` has at most.
        removed: topics whose message was removed and that have none since, in the order of it:
            (number of the change, Client Identifier of who has cleared it; of its publisher where
            it has expired).
    """

    def __init__(
        self,
        max_messages: int = sys.maxsize,
        max_bytes: int = sys.maxsize,
        *,
        timers: Timers | None = None,
    ) -> None:
        """Keep nothing yet.

        Args:
            max_messages: limit of `n_limited`.
            max_bytes: limit of `n_bytes`.
            timers: on which messages expire; None where they are not run.
        """
        self._root = _Node(0)
        self._n_sets = 0
        self._timers = timers if timers is not None else Timers()
        self._expiries: dict[str, Timer] = {}
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.by_topic: dict[str, Message] = {}
        self.n_limited = 0
        self.n_bytes = self.level_bytes = 0
        self.on_change: Callable[[str], None] | None = None
        self.expired_total = 0
        self.most_removed = 0
        self.removed: dict[str, tuple[int, str]] = {}
        self._shown: dict[str, Show] = {}

    def __len__(self) -> int:
        return len(self.by_topic)

    @property
    def number(self) -> int:
        """Number of the last change; `RetainedWalk.number` of later sets is higher."""
        return self._n_sets

    def has_room(self, message: Message) -> bool:
        """Say whether `set` would keep a message, or remove one for its empty payload."""
        return not message.payload_bytes or self._fits(message, *self._growth(message))

    def has_room_for_run(self, n_bytes: int, publisher: str) -> bool:
        """Say whether there is surely room for messages of one publisher.

        Their packets have `n_bytes`.
        """
        n_messages = n_bytes // _LEAST_PACKET_BYTES
        most_bytes = n_bytes * _MOST_PER_BYTE + n_messages * len(publisher)
        return (
            self.n_limited + n_messages <= self.max_messages
            and self.n_bytes + most_bytes <= self.max_bytes
        )

    def _growth(self, message: Message) -> tuple[int, int, int]:
        """Return what `n_limited`, `n_bytes` and `level_bytes` grow by where a message is set."""
        n_messages, n_bytes = _cost(message)
        last = self.by_topic.get(message.topic)
        if last is None:
            n_level_bytes = self._bytes_of_new_levels(message.topic)
            return n_messages, n_bytes + n_level_bytes, n_level_bytes
        n_messages_before, n_bytes_before = _cost(last)
        return n_messages - n_messages_before, n_bytes - n_bytes_before, 0

    def _fits(self, message: Message, n_messages: int, n_bytes: int, _: int) -> bool:
        return (
            self.n_limited + n_messages <= self.max_messages
            and self.n_bytes + n_bytes <= self.max_bytes
        ) or _is_own(message)

    def set(self, message: Message, *, is_restored: bool = False) -> bool:
        """Keep a message in place of its topic's last one; an empty payload removes it.

        [MQTT-3.3.1-5], [MQTT-3.3.1-6]. Where there is no room, the topic has no retained message
        any more: the last one is not its last word ([MQTT-3.3.1-7] of MQTT 3.1.1). What was kept
        before a restart is restored whatever the limits are.

        Returns:
            False where there was no room.
        """
        if not message.payload_bytes:
            self.remove(message.topic, by=message.publisher)
            return True
        growth = self._growth(message)
        if not (is_restored or self._fits(message, *growth)):
            self.remove(message.topic, by=message.publisher)
            return False
        n_messages, n_bytes, n_level_bytes = growth
        self.n_limited += n_messages
        self.n_bytes += n_bytes
        self.level_bytes += n_level_bytes
        if self._expiries:
            self._stop_expiry(message.topic)
        if message.expires_at is not None:
            self._expiries[message.topic] = self._timers.at(
                message.expires_at, lambda _now: self.expire(message.topic)
            )
        if self.removed:
            self.removed.pop(message.topic, None)
        self._n_sets += 1
        node = self._root
        for level in message.topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.own_children()[level] = _Node(self._n_sets)
            node = child
        node.message = message
        node.set_at = self._n_sets
        self.by_topic[message.topic] = message
        if self.on_change is not None:
            self.on_change(message.topic)
        return True

    def remove(self, topic: str, *, by: str | None = None) -> None:
        """Forget the message of a topic, if there is one, cleared `by` a Client Identifier.

        None stands for that of the message's own publisher.
        """
        message = self.by_topic.pop(topic, None)
        if message is None:
            return
        self._n_sets += 1
        if self.most_removed:
            self.removed[topic] = self._n_sets, message.publisher if by is None else by
            if len(self.removed) > self.most_removed:
                del self.removed[next(iter(self.removed))]
        n_messages, n_bytes = _cost(message)
        self.n_limited -= n_messages
        self.n_bytes -= n_bytes
        if self.on_change is not None:
            self.on_change(topic)
        self._stop_expiry(topic)
        path = []
        node = self._root
        for level in topic.split("/"):
            path.append((node, level))
            node = node.children[level]
        node.message = None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            children = parent.own_children()
            del children[level]
            if not children and parent is not self._root:
                parent.children = _NO_CHILDREN
        n_level_bytes = self._bytes_of_new_levels(topic)
        self.n_bytes -= n_level_bytes
        self.level_bytes -= n_level_bytes

    def _bytes_of_new_levels(self, topic: str) -> int:
        """Return what the levels of a topic take that are not there; none under `$SYS` counts."""
        if topic.startswith("$SYS"):
            return 0
        node = self._root
        levels = topic.split("/")
        for n_found, level in enumerate(levels):
            child = node.children.get(level)
            if child is None:
                n_new = len(levels) - n_found
                has_table = node.children is not _NO_CHILDREN or node is self._root
                n_tables = n_new - 1 if has_table else n_new
                return n_new * LEVEL_BYTES + n_tables * TABLE_BYTES
            node = child
        return 0

    def expire(self, topic: str) -> None:
        """Forget and count the message of a topic, whose interval has passed."""
        self.expired_total += 1
        self.remove(topic)

    def _stop_expiry(self, topic: str) -> None:
        timer = self._expiries.pop(topic, None)
        if timer is not None:
            timer.cancel()

    def special_levels(self) -> list[str]:
        """Return those first levels of topics that begin with ``$``, which ``#`` leaves out."""
        return [level for level in self._root.children if level.startswith("$")]

    def may_match(self, topic_filter: str) -> bool:
        """Say whether a walk is worth while: False where nothing that is retained matches.

        Only the levels before the first wildcard are looked at.
        """
        if self._shown:
            for prefix in self._shown:
                name = topic_filter.removeprefix(prefix)
                if name not in ("", topic_filter) and self._may_match(name):
                    return True
        return self._may_match(topic_filter)

    def _may_match(self, topic_filter: str) -> bool:
        if not self.n_limited and not topic_filter.startswith("$"):
            return False  # what is left are the broker's own
        node = self._root
        for level in topic_filter.split("/"):
            children = node.children
            if level in ("+", "#"):
                if node is self._root:
                    return any(not name.startswith("$") for name in children)  # [MQTT-4.7.2-1]
                return bool(children) or node.message is not None
            child = children.get(level)
            if child is None:
                return False
            node = child
        return True

    def show(self, prefix: str, show: Show) -> None:
        """Let walks below a prefix find each retained message in another form.

        Args:
            prefix: topic levels with a ``/`` at the end; a walk to ``PREFIX a/b`` finds what `show`
                returns for the message of ``a/b``, after what is retained there itself.
            show: see `Show`.
        """
        self._shown[prefix] = show

    def walk(self, topic_filter: str) -> RetainedWalk:
        """Begin a walk through the messages that match a filter and are retained now."""
        for prefix, show in self._shown.items():
            name = topic_filter.removeprefix(prefix)
            if name not in ("", topic_filter):
                source = RetainedWalk(self, self._root, self._n_sets, name)
                return ShownWalk(self, self._root, self._n_sets, topic_filter, source, show)
        return RetainedWalk(self, self._root, self._n_sets, topic_filter)


class RetainedWalk:
    """A walk through the retained messages of one filter that may rest after every step.

    It finds what was retained when it began and still is. Whatever else is set or removed
    meanwhile, it goes on where it stands: it reads each table of children as that was when it
    came to it, in order of `_Node.number`.

    Attributes:
        is_done: there is no further message.
    """

    __slots__ = (
        "_has_rest",
        "_levels",
        "_path",
        "_root",
        "_started",
        "_store",
        "_to_come",
        "is_done",
    )

    def __init__(
        self, store: RetainedMessages, root: _Node, started: int, topic_filter: str
    ) -> None:
        self._store = store
        self._root = root
        self._started = started
        self._levels = topic_filter.split("/")
        self._has_rest = self._levels[-1] == "#"
        if self._has_rest:
            del self._levels[-1]
        # Where it stands: from the root down, each node with those of its children to come.
        self._path: list[_Node] = [root]
        self._to_come: list[Iterator[tuple[str, _Node]]] = [self._children(root, 0)]
        self.is_done = False

    def step(self, now: float) -> Message | None:
        """Go on to the next topic level.

        Args:
            now: monotonic seconds; what has expired is forgotten on the way [MQTT-3.3.2-5].

        Returns:
            The message found there; None where there is none that matches, or no further level.
        """
        path, to_come = self._path, self._to_come
        while path:
            for name, node in to_come[-1]:
                depth = len(path)
                if depth == 1 and name.startswith("$") and self._is_wildcard(0):
                    continue  # [MQTT-4.7.2-1]
                path.append(node)
                to_come.append(self._children(node, depth))
                return self._message(node, depth, now)
            path.pop()
            to_come.pop()
        self.is_done = True
        return None

    def ahead(self, topic: str) -> Message | None:
        """Return the message of a matching topic if the walk is still to come to it."""
        path = self._path
        node = self._root
        is_ahead = False
        for depth, level in enumerate(topic.split("/"), start=1):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
            if not is_ahead and depth < len(path):
                if node is path[depth]:
                    continue
                if node.number < path[depth].number:
                    return None
            is_ahead = True
        return node.message if is_ahead and path and node.set_at <= self._started else None

    @property
    def number(self) -> int:
        """Number of the set that brought the message which `step` has returned."""
        return self._path[-1].set_at

    def _message(self, node: _Node, depth: int, now: float) -> Message | None:
        n_levels = len(self._levels)
        message = node.message
        if message is None or node.set_at > self._started:
            return None
        if depth < n_levels or (depth > n_levels and not self._has_rest):
            return None
        if message.is_expired(now):
            self._store.expire(message.topic)
            return None
        return message

    def _is_wildcard(self, depth: int) -> bool:
        levels = self._levels
        return levels[depth] == "+" if depth < len(levels) else self._has_rest

    def _children(self, node: _Node, depth: int) -> Iterator[tuple[str, _Node]]:
        """Return those children of a node that the filter goes on to."""
        if self._is_wildcard(depth):
            node.is_walked = True
            return iter(node.children.items())
        if depth < len(self._levels):
            level = self._levels[depth]
            child = node.children.get(level)
            if child is not None:
                return iter(((level, child),))
        return iter(())


class ShownWalk(RetainedWalk):
    """A walk that also finds other forms of what is retained, by `RetainedMessages.show`.

    The forms of a message end as soon as another one is retained in its topic, or none.
    """

    __slots__ = ("_forms", "_message_shown", "_show", "_source")

    def __init__(
        self,
        store: RetainedMessages,
        root: _Node,
        started: int,
        topic_filter: str,
        source: RetainedWalk,
        show: Show,
    ) -> None:
        super().__init__(store, root, started, topic_filter)
        self._source = source
        self._show = show
        self._message_shown: Message | None = None
        self._forms: Iterator[Message] = iter(())

    def step(self, now: float) -> Message | None:
        """Go on to the next topic level, or to the next form of a message."""
        if self._path:
            found = super().step(now)
            self.is_done = False
            return found
        source = self._message_shown
        if source is not None:
            is_retained = self._store.by_topic.get(source.topic) is source
            form = next(self._forms, None) if is_retained and not source.is_expired(now) else None
            if form is None:
                self._message_shown = None
                self._forms = iter(())
            return form
        self._message_shown = message = self._source.step(now)
        if message is not None:
            self._forms = self._show(message, self._source.number)
        self.is_done = self._source.is_done
        return None


def _is_own(message: Message) -> bool:
    """Say whether a message is the broker's own, which no limit holds back."""
    return not message.publisher and message.topic.startswith("$SYS")


def _cost(message: Message) -> tuple[int, int]:
    """Return what a retained message counts towards the limits: messages and bytes."""
    if _is_own(message):
        return 0, 0
    n_bytes = RETAINED_BYTES + message.memory_bytes + len(message.topic_bytes)
    return 1, n_bytes if message.expires_at is None else n_bytes + EXPIRY_BYTES
