"""The messages between a network and its forwarder: one line of JSON each way in turn.

The forwarder answers each request with one `Answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter

from penstock.broker.config.key_types import STRICT
from penstock.netem.links.channel import Counts
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.profiles import Profile


@dataclass(frozen=True, slots=True)
class Add:
    """Make two TUN devices and forward between them.

    Attributes:
        link: its number.
        devices: names of the server's side and the client's.
        profile: to begin with.
        seed: of its chance.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    devices: tuple[str, str]
    profile: Profile
    seed: str
    do: Literal["add"] = "add"


@dataclass(frozen=True, slots=True)
class AddTc:
    """Make a link of veth devices, whose ends in the hosts are called ``link`` and the number.

    Attributes:
        link: its number.
        wires: namespace of the links.
        hosts: those of the server and the client.
        profile: to begin with.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    wires: str
    hosts: tuple[str, str]
    profile: Profile
    do: Literal["add_tc"] = "add_tc"


@dataclass(frozen=True, slots=True)
class Switch:
    """Change a link now, and leave it so."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    profile: Profile
    do: Literal["switch"] = "switch"


@dataclass(frozen=True, slots=True)
class Follow:
    """Change a link as is laid down.

    Attributes:
        link: its number.
        changes: what and when.
        begin_at: monotonic seconds of their beginning; may be past.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    changes: Changes
    begin_at: float
    do: Literal["follow"] = "follow"


@dataclass(frozen=True, slots=True)
class Tell:
    """Say what became of a link's packets, and when it changed."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    do: Literal["tell"] = "tell"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        error: why it was not done; None where it was.
        log: for `Tell`: (monotonic seconds, name of the profile) of each change, oldest first.
        upstream: for `Tell`: towards the server.
        downstream: for `Tell`: towards the client.
    """

    error: str | None = None
    log: list[tuple[float, str]] = field(default_factory=list)
    upstream: Counts | None = None
    downstream: Counts | None = None


Request: TypeAlias = Add | AddTc | Switch | Follow | Tell
REQUEST: Final[TypeAdapter[Request]] = TypeAdapter(Request)
ANSWER: Final = TypeAdapter(Answer)
