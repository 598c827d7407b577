"""The fields of a log line, for the forms ``keyvalue`` and ``json``.

Theory of operation. A call of the log names its values by the words before them: in ``client %s:
keep-alive timeout`` the value is a client id. `fields_of` reads each format string once. What it
cannot see there is given with the call, as ``extra={"event": ..., "reason": ...}``, or by an
argument that is a `Named`.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

FIELDS: Final = (
    "event",
    "worker",
    "client_id",
    "user",
    "address",
    "listener",
    "queue",
    "group",
    "uplink",
    "plugin",
    "action",
    "outcome",
    "reason",
    "left_out",
)
"""The fields that a line may have, in their order; `event` is in each."""

MOST_WORDS: Final = 6
"""The name of an event has at most so many words of its format string."""

_PLACE: Final = re.compile(r"%(?:\([^)]*\))?(?:\.\*)?[-+#0-9.]*([a-zA-Z%])")

_NAMES: Final = {name: name for name in ("user", "listener", "queue", "group", "uplink", "plugin")}
_NAMES["client"] = "client_id"
_BEFORE: Final = re.compile(rf"\b({'|'.join(_NAMES)}) $")
_BEFORE_REASON: Final = re.compile(
    r"\b(closed|disconnected|ended|failed|ignored|not judged|refused)[:,] (banned by )?$"
)
_SUBJECT: Final = re.compile(
    r"^(?:(?:by an operator|persistence|probing|queue): )?"
    rf"(?:(?:(?:{'|'.join(_NAMES)}) )?%[sr]:? )+"
)


class Named(str):
    """A text of a line, with fields."""

    __slots__ = ("fields",)

    fields: dict[str, str]

    def __new__(cls, text: str, **fields: str) -> Self:
        """Make it of the text and its fields."""
        made = super().__new__(cls, text)
        made.fields = fields
        return made


def peer_name(address: str, listener: str, client_id: str | None = None) -> Named:
    """Return the name of a peer."""
    text = f"{address} on listener {listener}"
    if client_id is None:
        return Named(text, address=address, listener=listener)
    return Named(
        f"client {client_id} ({text})", client_id=client_id, address=address, listener=listener
    )


class _Template(NamedTuple):
    """What a format string says of its values.

    Attributes:
        names: pairs of a field and the place of its value among the arguments.
    """

    event: str
    names: tuple[tuple[str, int], ...]


@lru_cache(maxsize=1_000)
def _read(template: str) -> _Template:
    names: list[tuple[str, int]] = []
    place = 0
    for found in _PLACE.finditer(template):
        if found[1] == "%":
            continue
        place += ".*" in found[0]  # the precision is an argument of its own
        before = template[: found.start()]
        if found[1] in "sr":
            if named := _BEFORE.search(before):
                names.append((_NAMES[named[1]], place))
            elif _BEFORE_REASON.search(before):
                names.append(("reason", place))
        place += 1
    said = _PLACE.sub("", _SUBJECT.sub("", template, count=1)).lower()
    words = (re.findall(r"[a-z0-9.]*[a-z][a-z0-9]+", part) for part in re.split(r"[,;:(]", said))
    event = "_".join(next(filter(None, words), [])[:MOST_WORDS])
    return _Template(event or "message", tuple(names))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record that are known, in the order of `FIELDS`."""
    template = _read(record.msg if isinstance(record.msg, str) else "")
    arguments = record.args if isinstance(record.args, tuple) else ()
    found: dict[str, Any] = {"event": template.event}
    for argument in arguments:
        if isinstance(argument, Named):
            found |= argument.fields
    for name, place in template.names:
        value = arguments[place] if place < len(arguments) else None
        if value is not None and not isinstance(value, Named):
            found.setdefault(name, str(value))
    known = record.__dict__
    found |= {name: known[name] for name in FIELDS if known.get(name) is not None}
    return {name: found[name] for name in FIELDS if name in found}
