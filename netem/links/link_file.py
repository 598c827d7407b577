"""The file of a link, with its profiles and the changes between them.

YAML, in the units of `penstock.netem.links.profiles`; docs/how-to/netem.md has an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT
from penstock.netem.checked_yaml import Mistake, MistakesError, fit, read_yaml
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.profiles import Profile
from penstock.netem.runs.impairments import OnOffPlan, TracePlan, draw_profiles, make_changes
from penstock.netem.runs.profile_plan import ProfilePlan


@dataclass(frozen=True, slots=True)
class _OnOff(OnOffPlan):
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    seed: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    profiles: dict[str, ProfilePlan]
    begin: str
    on_off: _OnOff | None = None
    trace: TracePlan | None = None

    def __post_init__(self) -> None:
        if self.on_off is not None and self.trace is not None:
            raise ValueError("read on_off and trace; allowed: one of them")


@dataclass(frozen=True, slots=True)
class LinkFile:
    """The content of a link file.

    Attributes:
        changes: the changes between profiles; None if the link does not change.
    """

    profiles: dict[str, Profile]
    begin: Profile
    changes: Changes | None


def read_link(path: Path) -> LinkFile:
    """Read a link from a file.

    Raises:
        NetemError: the file cannot be read or holds mistakes: one line for each mistake, with the
            file, the place in it, what was read and what is allowed.
    """
    mapping = read_yaml(path)
    try:
        return _understand(mapping)
    except MistakesError as error:
        raise error.of(path) from error


def _understand(mapping: Any) -> LinkFile:
    file = fit(_File, mapping)
    seed = 0 if file.on_off is None else file.on_off.seed
    profiles = draw_profiles(file.profiles, seed, "")
    if file.begin not in profiles:
        words = f"read {file.begin!r}; allowed: {', '.join(profiles)}"
        raise MistakesError([Mistake(("begin",), words)])
    changes = make_changes(file.on_off, file.trace, profiles, seed)
    return LinkFile(profiles, profiles[file.begin], changes)
