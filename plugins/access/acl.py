"""Topic permissions from a file in the format of mosquitto's `acl_file`.

The rules are those of mosquitto 2.0, from mosquitto.conf(5) and from its behaviour:

* ``topic`` lines before the first ``user`` line apply to clients without a user name; those after a
  ``user`` line apply to that user only. ``pattern`` lines apply to all clients, wherever they are.
* Among a client's own lines, any matching ``deny`` refuses; otherwise any line that grants the
  access allows. If no own line decides, the patterns decide in the same way. If no pattern decides,
  access is refused.
* In a pattern ``%u`` stands for the user name and ``%c`` for the Client Identifier. A pattern with
  ``%u`` does not apply to clients without a user name. Where there are patterns, a client with
  ``+`` or ``#`` in its names is refused everything that its own lines do not allow: its name would
  be a wildcard.
* A filter that begins with a wildcard does not match topics that begin with ``$``.
* A SUBSCRIBE is always allowed; each message is checked when it is delivered.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.errors import ConfigError, ConfigProblem, MalformedPacketError
from penstock.broker.mqtt.topics import matches, validate_topic_filter

READ: Final = 1
WRITE: Final = 2
DENY: Final = 0

_ACCESSES: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}

_ALLOWED_LINES: Final = (
    "topic [read|write|readwrite|deny] FILTER, pattern [read|write|readwrite|deny] FILTER "
    "or user NAME"
)

_MAX_REMEMBERED: Final = 65_536
"""So many answers are cached, of some 200 bytes each; most clients use few topics."""

_MAX_REMEMBERED_CHARACTERS: Final = 512
"""Questions with more characters in names and topic are not cached: each may have 65,535 bytes, and
the cache would then take 12 GB."""


class Rule(NamedTuple):
    """One line of the file.

    Attributes:
        access: `READ`, `WRITE`, both, or `DENY`.
        topic_filter: the topic filter for a pattern, before ``%u`` and ``%c`` are replaced.
    """

    access: int
    topic_filter: str


class AccessList:
    """One ACL file.

    Attributes:
        by_user: user name to its own rules; None for clients without one.
    """

    def __init__(
        self, by_user: dict[str | None, tuple[Rule, ...]], patterns: tuple[Rule, ...]
    ) -> None:
        self.by_user = by_user
        self.patterns = patterns
        self._remembered: dict[tuple[str | None, str, str, int], bool] = {}

    def allows(self, username: str | None, client_id: str, topic: str, access: int) -> bool:
        """Say whether a client has an access to a topic."""
        if len(topic) + len(client_id) + len(username or "") > _MAX_REMEMBERED_CHARACTERS:
            return self._judge(username, client_id, topic, access)
        asked = (username, client_id, topic, access)
        answer = self._remembered.get(asked)
        if answer is None:
            answer = self._judge(username, client_id, topic, access)
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[asked] = answer
        return answer

    def _judge(self, username: str | None, client_id: str, topic: str, access: int) -> bool:
        own = _verdict(self.by_user.get(username, ()), topic, access)
        if own is not None:
            return own
        if not self.patterns or _has_wildcard(client_id) or _has_wildcard(username or ""):
            return False
        rules = [
            Rule(rule.access, filled)
            for rule in self.patterns
            if (username is not None or "%u" not in rule.topic_filter)
            and (filled := _filled_in(rule.topic_filter, username or "", client_id))
        ]
        return _verdict(rules, topic, access) or False


def _verdict(rules: tuple[Rule, ...] | list[Rule], topic: str, access: int) -> bool | None:
    """Return the decision of a list of rules, or None where no rule applies."""
    matching = [rule.access for rule in rules if matches(rule.topic_filter, topic)]
    if DENY in matching:
        return False
    return True if any(granted & access for granted in matching) else None


def _has_wildcard(name: str) -> bool:
    return "+" in name or "#" in name


def _filled_in(pattern: str, username: str, client_id: str) -> str:
    """Return a pattern for one client; placeholders inside the names are not replaced."""
    parts = pattern.split("%c")
    return client_id.join(part.replace("%u", username) for part in parts)


def parse_acl(text: str, file: str) -> AccessList:
    """Read an ACL file.

    Raises:
        ConfigError: names every line that is wrong.
    """
    by_user: dict[str | None, list[Rule]] = {}
    patterns: list[Rule] = []
    problems: list[ConfigProblem] = []
    user: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if line.startswith("#") or not stripped:
            continue
        keyword, _, rest = stripped.partition(" ")
        rest = rest.strip()
        try:
            if keyword == "user" and rest:
                user = rest
            elif keyword == "topic" and rest:
                by_user.setdefault(user, []).append(_parse_rule(rest))
            elif keyword == "pattern" and rest:
                patterns.append(_parse_rule(rest))
            else:
                raise ValueError(_ALLOWED_LINES)  # noqa: TRY301 (all wrong lines end alike)
        except ValueError as error:
            problems.append(ConfigProblem(f"line {number}", repr(stripped), str(error)))
    if problems:
        raise ConfigError(file, problems)
    return AccessList({user: tuple(rules) for user, rules in by_user.items()}, tuple(patterns))


def _parse_rule(rest: str) -> Rule:
    """Read the rest of a line after ``topic`` or ``pattern``.

    Raises:
        ValueError: says what is allowed.
    """
    word, blank, topic_filter = rest.partition(" ")
    if not blank:
        rule = Rule(READ | WRITE, word)
    elif word in _ACCESSES:
        rule = Rule(_ACCESSES[word], topic_filter.strip())
    else:
        raise ValueError(f"{', '.join(_ACCESSES)} before the filter, or a filter without a blank")
    try:
        validate_topic_filter(rule.topic_filter)
    except MalformedPacketError as error:
        raise ValueError(error.args[0]) from None
    return rule
