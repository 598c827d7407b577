"""Topics that pass an uplink, their names on its other side, and protection against loops.

A rule names topics by a filter, which is the same on both sides but for its prefix: with
``filter: "+/temperature"``, ``local_prefix: plant/`` and ``remote_prefix: sites/berlin/plant/``,
the local topic ``plant/oven/temperature`` is ``sites/berlin/plant/oven/temperature`` in the cloud.
Of several rules of one direction, the first one that matches a topic determines its name. A message
passes once, however many rules match.

A message that passes uplinks carries User Properties: its first site, each other site where it was,
and the number of uplinks that it went up. It is dropped where it would come to one of these sites
again, or where that number exceeds a limit. An uplink knows its own site, and the site of the
broker that it leads to if that is a Penstock with uplinks of its own. So a message does not even
cross the network to where it was. MQTT 3.1.1 has no such properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT
from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import SITE_PROPERTY
from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.broker.mqtt.topics import SHARE_PREFIX, matches, parse_share, validate_topic_filter

HOPS_PROPERTY: Final = "penstock-hops"
"""User Property with the decimal number of uplinks that the message went up."""
VIA_PROPERTY: Final = "penstock-via"
"""User Property with the name of a site where the message was, one for each but the first."""


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class Rule:
    """Topics that pass in one direction.

    Attributes:
        filter: topic filter of what passes, without the prefixes; empty where both prefixes are
            topics: one becomes the other.
        qos: largest QoS of what passes; of several rules that match, the largest counts.
        local_prefix: text before the filter at the site, mostly with a ``/`` at its end.
        remote_prefix: text before the filter in the cloud.
        parts: messages pass only in parts, which the plugin ``parts`` makes at one end and puts
            together at the other.
    """

    filter: str = "#"
    qos: Literal[0, 1, 2] = 2
    local_prefix: str = ""
    remote_prefix: str = ""
    parts: bool = False

    def __post_init__(self) -> None:
        """Check that the filters of both sides are topic filters."""
        for name, prefix in (
            ("local_prefix", self.local_prefix),
            ("remote_prefix", self.remote_prefix),
        ):
            if "+" in prefix or "#" in prefix or prefix.startswith(SHARE_PREFIX):
                raise ValueError(f"{name} without + and #, and not below {SHARE_PREFIX}")
            try:
                validate_topic_filter(prefix + self.filter)
            except MalformedPacketError as error:
                raise ValueError(
                    f"a filter that is a topic filter behind {name} ({error.args[0]})"
                ) from error
            if (prefix + self.filter).startswith(SHARE_PREFIX):
                raise ValueError(f"a filter that is not below {SHARE_PREFIX}")

    @property
    def local_filter(self) -> str:
        """Topic filter of what passes, by its names at the site."""
        return self.local_prefix + self.filter

    @property
    def remote_filter(self) -> str:
        """Topic filter of what passes, by its names in the cloud."""
        return self.remote_prefix + self.filter


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class DownRule(Rule):
    """Topics that come down.

    Attributes:
        when: ``subscribed``: what clients of the site subscribe to. ``always``: all topics, so that
            retained messages are there before a client asks.
    """

    when: Literal["subscribed", "always"] = "subscribed"


AnyRule = TypeVar("AnyRule", bound=Rule)


def of_parts(rules: Iterable[AnyRule], prefix: str) -> list[AnyRule]:
    """Return the rules, where those with `parts` stand for the topics of the parts.

    Parts pass at QoS 1 or more: at QoS 0 they would be lost, and the QoS of the message is in them.
    """
    return [
        replace(
            rule,
            qos=max(rule.qos, 1),
            local_prefix=f"{prefix}/{rule.local_prefix}",
            remote_prefix=f"{prefix}/{rule.remote_prefix}",
        )
        if rule.parts
        else rule
        for rule in rules
    ]


def in_parts(topic_filter: str, prefix: str) -> str:
    """Return the topic filter of the parts of what a client has subscribed to."""
    share_name, plain = parse_share(topic_filter)
    name = f"{prefix}/{plain}"
    return f"{SHARE_PREFIX}{share_name}/{name}" if share_name else name


class Remapping:
    """The rules of both directions of one uplink, or of one lane of it."""

    def __init__(
        self,
        up_rules: Sequence[Rule],
        down_rules: Sequence[DownRule],
        *,
        all_up: Sequence[Rule] | None = None,
        all_down: Sequence[DownRule] | None = None,
    ) -> None:
        """Prepare the rules.

        Args:
            up_rules: see the attribute.
            down_rules: see the attribute.
            all_up: rules of all lanes, which give topics their names; None for `up_rules`. A lane
                that takes over the other one gets messages of the other's rules.
            all_down: rules of all lanes for what comes down; None for `down_rules`.
        """
        self.up_rules = tuple(up_rules)
        self.down_rules = tuple(down_rules)
        self._up = [
            _Renaming(rule.local_prefix, rule.local_filter, rule.remote_prefix, rule.remote_filter)
            for rule in (up_rules if all_up is None else all_up)
        ]
        self._down = [
            _Renaming(rule.remote_prefix, rule.remote_filter, rule.local_prefix, rule.local_filter)
            for rule in (down_rules if all_down is None else all_down)
        ]

    def up_filters(self) -> dict[str, int]:
        """Return what *up* subscribes to at the site's broker: topic filter to QoS."""
        return _highest((rule.local_filter, rule.qos) for rule in self.up_rules)

    def up(self, topic: str) -> str | None:
        """Return the name in the cloud of a topic of the site; None where it does not go up.

        A topic does not pass either if its name would be too long, or would be below ``$`` where
        the rule is not.
        """
        return _renamed(topic, self._up)

    def down(self, remote_topic: str) -> str | None:
        """Return the name at the site of a topic of the cloud; None where it does not come down."""
        return _renamed(remote_topic, self._down)


@dataclass(frozen=True, slots=True)
class _Renaming:
    """One rule in one direction: from a prefix and filter to another prefix and filter."""

    from_prefix: str
    from_filter: str
    to_prefix: str
    to_filter: str

    def rename(self, topic: str) -> str | None:
        """Return the topic's other name; None where the rule does not match it."""
        if not matches(self.from_filter, topic):
            return None
        if topic.startswith(self.from_prefix):
            renamed = self.to_prefix + topic[len(self.from_prefix) :]
        else:  # "a", which "a/#" matches: its other name is "b", where "b/#" is the other filter
            renamed = self.to_prefix.removesuffix("/")
        if not renamed or not matches(self.to_filter, renamed):
            return None
        if len(renamed) * 4 > MAX_STRING_BYTES and len(renamed.encode()) > MAX_STRING_BYTES:
            return None
        return renamed


def _renamed(topic: str, renamings: Iterable[_Renaming]) -> str | None:
    """Return a topic's name by the first rule that matches; None for none."""
    for renaming in renamings:
        renamed = renaming.rename(topic)
        if renamed is not None:
            return renamed
    return None


def _highest(filters: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return each topic filter with its highest QoS, in the order of the filters."""
    found: dict[str, int] = {}
    for topic_filter, qos in filters:
        found[topic_filter] = max(qos, found.get(topic_filter, 0))
    return found


@dataclass(frozen=True, slots=True)
class Loops:
    """Recognises messages that go round in a loop.

    Attributes:
        max_hops: how many uplinks a message may go up.
        peer: name of the cloud broker's site; "" where it has none or the name is not known.
    """

    site: str
    max_hops: int
    peer: str = ""

    def leads_to(self, site: str) -> Loops:
        """Return a copy for an uplink that leads to a site; "" for none."""
        return replace(self, peer="" if site == self.site else site)

    def why_not_up(self, user_properties: Iterable[tuple[str, str]]) -> str:
        """Say why a message must not go up; "" where it may."""
        for name, value in user_properties:
            if name in (SITE_PROPERTY, VIA_PROPERTY) and value == self.peer != "":
                return f"it comes from site {value}, to which this uplink leads"
        return self._why_loop(user_properties, self.max_hops - 1)

    def why_not_down(self, user_properties: Iterable[tuple[str, str]]) -> str:
        """Say why a message must not come down; "" where it may."""
        for name, value in user_properties:
            if name == VIA_PROPERTY and value == self.site:
                return f"it was at site {value} before"
        return self._why_loop(user_properties, self.max_hops)

    def _why_loop(self, user_properties: Iterable[tuple[str, str]], most_hops: int) -> str:
        """Say why a message has to end here; "" where it does not.

        A number of hops that cannot be read counts as too many: only uplinks write the property.
        """
        for name, value in user_properties:
            if name == SITE_PROPERTY and value == self.site:
                return f"it went up first from site {value}, as this one is called"
            if name == HOPS_PROPERTY and _hops(value) > most_hops:
                return f"it went up {value:.10} uplinks; allowed: at most {self.max_hops}"
        return ""

    def up(self, user_properties: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the User Properties with which a message goes up, for which `why_not_up` is "".

        They name this site, so that another way does not bring the message here again.
        """
        sites = [pair for pair in user_properties if pair[0] == SITE_PROPERTY]
        hops = [int(_hops(value)) for name, value in user_properties if name == HOPS_PROPERTY]
        ours = (SITE_PROPERTY, HOPS_PROPERTY)
        others = [pair for pair in user_properties if pair[0] not in ours]
        site = sites[-1:] or [(SITE_PROPERTY, self.site)]
        via = _naming([*others, *site], self.site)
        return [*others, *via, *site, (HOPS_PROPERTY, str(sum(hops[-1:]) + 1))]

    def down(self, user_properties: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the User Properties with which a message comes down; see `up`.

        They name the site of the broker in the cloud, too. No uplink has done so where the message
        was published there, or came up to it.
        """
        has_site = any(name == SITE_PROPERTY for name, _ in user_properties)
        if not self.peer:
            above = []
        elif has_site:
            above = _naming(user_properties, self.peer)
        else:
            above = [(SITE_PROPERTY, self.peer)]
        return [*user_properties, *above, (VIA_PROPERTY, self.site)]


def _naming(user_properties: Iterable[tuple[str, str]], site: str) -> list[tuple[str, str]]:
    """Return the User Property that names a site; nothing where there is one already."""
    marks = ((SITE_PROPERTY, site), (VIA_PROPERTY, site))
    return [] if any(pair in marks for pair in user_properties) else [(VIA_PROPERTY, site)]


def _hops(text: str) -> float:
    """Return a number of hops; infinity for a text that is not a number from 0 on."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else float("inf")
