"""Topic Names, Topic Filters and how they match (section 4.7 of both versions).

Both are case sensitive, compared level by level, never normalised [MQTT-4.7.3-4]. A name or filter
that breaks the rules is a malformed packet. For one that is well formed and not allowed here the
broker has other reason codes (0x8F, 0x90).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.enums import MAX_STRING_BYTES

SHARE_PREFIX = "$share/"

Level = TypeVar("Level", bound=dict[Any, Any])
"""A node of a trie of topic filters: a table of the next levels."""


class Share(NamedTuple):
    """A subscribed topic filter, split.

    Attributes:
        share_name: ShareName of a Shared Subscription, or "" for any other.
        topic_filter: the filter that topics are matched against.
    """

    share_name: str
    topic_filter: str


def validate_topic(name: str) -> None:
    """Check a Topic Name.

    Raises:
        MalformedPacketError: it is empty [MQTT-4.7.3-1], holds U+0000 [MQTT-4.7.3-2] or a
            wildcard [MQTT-4.7.0-1], or is longer than 65,535 bytes [MQTT-4.7.3-3].
    """
    if "+" in name or "#" in name:
        raise MalformedPacketError(
            f"topic name {_shorten(name)} holds a wildcard; allowed: no + and no # [MQTT-4.7.0-1]"
        )
    _validate_text("topic name", name)


def read_topic(topic_bytes: bytes) -> str:
    """Return the Topic Name that stands in a PUBLISH, checked.

    Raises:
        MalformedPacketError: it is not UTF-8 [MQTT-1.5.4-1], or as `validate_topic`.
    """
    try:
        topic = topic_bytes.decode()
    except UnicodeDecodeError:
        raise MalformedPacketError("topic name is not UTF-8 [MQTT-1.5.4-1]") from None
    validate_topic(topic)
    return topic


def validate_topic_filter(topic_filter: str) -> None:
    """Check a Topic Filter, also one of a Shared Subscription.

    Raises:
        MalformedPacketError: it is empty, too long, holds U+0000, has a # that is not the whole
            last level [MQTT-4.7.1-1], a + that is not a whole level [MQTT-4.7.1-2], or a
            ``$share/`` without share name or filter [MQTT-4.8.2-1].
    """
    _validate_text("topic filter", topic_filter)
    _validate_filter_read(topic_filter)


def validate_filters_read(topic_filters: Sequence[str]) -> None:
    """Check Topic Filters that were read as UTF-8 after their lengths.

    Such a filter has no surrogate and is not too long. A packet may have thousands: they are looked
    at together, and one by one only where that finds something.

    Raises:
        MalformedPacketError: as `validate_topic_filter`.
    """
    text = "/\0/".join(("", *topic_filters, ""))  # a level is what stands between slashes
    n_plus, n_hash = text.count("+"), text.count("#")
    if (
        text.count("\0") != len(topic_filters) + 1  # U+0000 in one of them
        or "\0//\0" in text  # an empty one
        or "\0/$" in text
        or (n_plus and not text.count("/+") == text.count("+/") == n_plus)
        or (n_hash and text.count("/#/\0") != n_hash)
    ):
        for topic_filter in topic_filters:
            _validate_filter_read(topic_filter)


def _validate_filter_read(topic_filter: str) -> None:
    if not topic_filter or "\0" in topic_filter:
        _validate_text("topic filter", topic_filter)
    if topic_filter[0] == "$":
        parse_share(topic_filter)  # beside a share's name, its filter's levels are those of all
    if "+" in topic_filter and topic_filter.split("/").count("+") != topic_filter.count("+"):
        raise _misplaced_wildcard(topic_filter)
    if "#" in topic_filter:
        last = len(topic_filter) - 1
        if topic_filter.find("#") != last or (last and topic_filter[last - 1] != "/"):
            raise _misplaced_wildcard(topic_filter)


def _misplaced_wildcard(topic_filter: str) -> MalformedPacketError:
    """Return the error for a wildcard that is not a whole level, or a # that is not the last."""
    levels = parse_share(topic_filter).topic_filter.split("/")
    for depth, level in enumerate(levels, start=1):
        if "#" in level and (level != "#" or depth < len(levels)):
            return MalformedPacketError(
                f"topic filter {_shorten(topic_filter)}: # stands in {_shorten(level)}; allowed: "
                "# alone, as the last level [MQTT-4.7.1-1]"
            )
        if "+" in level and level != "+":
            break
    return MalformedPacketError(
        f"topic filter {_shorten(topic_filter)}: + stands in {_shorten(level)}; allowed: "
        "+ as a whole level [MQTT-4.7.1-2]"
    )


def parse_share(topic_filter: str) -> Share:
    """Split ``$share/{ShareName}/`` off a topic filter, if it has one.

    The filter inside is not checked; `validate_topic_filter` does both.

    Raises:
        MalformedPacketError: the share name is empty [MQTT-4.8.2-1] or holds a wildcard, or no
            filter follows it [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return Share("", topic_filter)
    share_name, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not share_name or not inner or not slash or "+" in share_name or "#" in share_name:
        raise MalformedPacketError(
            f"shared subscription {_shorten(topic_filter)}; allowed: $share/NAME/FILTER with no "
            "wildcard in NAME and neither part empty [MQTT-4.8.2-2]"
        )
    return Share(share_name, inner)


def matches(topic_filter: str, topic: str) -> bool:
    """Say whether a topic filter matches a topic name.

    A filter that begins with a wildcard matches no topic that begins with ``$``
    [MQTT-4.7.2-1]; ``a/#`` matches ``a`` as well.

    Args:
        topic_filter: valid, and without ``$share/NAME/``.
        topic: valid.
    """
    if topic_filter == topic:
        return True
    if topic[0] == "$" and topic_filter[0] in "+#":
        return False
    filter_levels = topic_filter.split("/")
    topic_levels = topic.split("/")
    if filter_levels[-1] == "#":
        filter_levels.pop()
        if len(topic_levels) < len(filter_levels):
            return False
    elif len(topic_levels) != len(filter_levels):
        return False
    return all(
        wanted in ("+", level) for wanted, level in zip(filter_levels, topic_levels, strict=False)
    )


def matching_nodes(root: Level, topic: str) -> Iterator[Level]:
    """Yield the node of every filter that matches a topic, in a trie of filters by their levels.

    A topic that begins with ``$`` is not matched by a wildcard at the first level
    [MQTT-4.7.2-1].

    Args:
        root: a table of first levels, each of which is a table of next ones.
        topic: valid.
    """
    levels = topic.split("/")
    n_levels = len(levels)
    wildcards_from = 1 if topic.startswith("$") else 0
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if depth == n_levels:
            yield node
            rest = node.get("#")  # "a/#" matches "a" [MQTT-4.7.1-2]
            if rest is not None:
                yield rest
            continue
        if depth >= wildcards_from:
            rest = node.get("#")
            if rest is not None:
                yield rest
            any_level = node.get("+")
            if any_level is not None:
                stack.append((any_level, depth + 1))
        child = node.get(levels[depth])
        if child is not None:
            stack.append((child, depth + 1))


def node_of(root: Level, topic_filter: str) -> Level:
    """Return the node of a filter, made where there is none."""
    node = root
    for level in topic_filter.split("/"):
        child = node.get(level)
        if child is None:
            child = node[level] = type(root)()
        node = child
    return node


def drop_levels(root: Level, topic_filter: str, is_used: Callable[[Level], object] = bool) -> None:
    """Remove the levels that lead to a filter alone, which nothing uses any more."""
    node = root
    path: list[tuple[Level, str]] = []
    for level in topic_filter.split("/"):
        path.append((node, level))
        node = node[level]
    for parent, level in reversed(path):
        if is_used(parent[level]):
            break
        del parent[level]


def _validate_text(kind: str, text: str) -> None:
    """Check the rules that names and filters share."""
    if not text:
        raise MalformedPacketError(
            f"{kind} is empty; allowed: one character or more [MQTT-4.7.3-1]"
        )
    if "\0" in text:
        raise MalformedPacketError(
            f"{kind} {_shorten(text)} holds U+0000; allowed: any other character [MQTT-4.7.3-2]"
        )
    if text.isascii():
        size_bytes = len(text)
    else:
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise MalformedPacketError(
                f"{kind} {_shorten(text)} holds a surrogate; allowed: what UTF-8 can encode "
                "[MQTT-1.5.4-1]"
            ) from None
    if size_bytes > MAX_STRING_BYTES:
        raise MalformedPacketError(
            f"{kind} {_shorten(text)} has {size_bytes} bytes; allowed: at most {MAX_STRING_BYTES} "
            "[MQTT-4.7.3-3]"
        )


def _shorten(text: str) -> str:
    """Return the text quoted for an error, truncated where it is long."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
