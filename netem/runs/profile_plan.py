"""A profile in a scenario file: both directions, and the ranges of its random parameters. Pure.

Theory of operation. A random parameter has a range in the file. Each link draws a value of its own
with each seed of a run, from the seed, the link's name and the profile's name; so the value is
equal for each broker. Seconds and shares are drawn uniformly from their range; rates uniformly by
their logarithm, so that a link is as often slower than the middle by a factor as it is faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT, Rate
from penstock.netem.links.profiles import Bursts, Direction, Profile

if TYPE_CHECKING:
    from random import Random

DIRECTIONS: Final = ("upstream", "downstream")
PARAMETERS: Final = ("delay", "jitter", "rate", "loss", "loss.begin", "loss.end")
"""The parameters that may be random: keys of a direction, and of a loss in bursts."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """A profile without its name.

    Attributes:
        upstream: the direction towards the first host of a link.
        downstream: the direction towards the second host.
        drawn: the least and greatest value of each random parameter, which replaces the value in
            `upstream` and `downstream`. A key of `PARAMETERS` stands for both directions; with
            ``upstream.`` or ``downstream.`` before it, for one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    upstream: Direction = field(default_factory=Direction)
    downstream: Direction = field(default_factory=Direction)
    drawn: dict[str, tuple[Rate, Rate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that all that may be drawn can be.

        Raises:
            ValueError: a key is unknown, a range has no end above its beginning, or a value in it
                is none that the parameter can have.
        """
        for key, (least, most) in self.drawn.items():
            if key not in _KEYS:
                raise ValueError(f"drawn: read {key!r}; allowed: {', '.join(_KEYS)}")
            if not least < most:
                raise ValueError(
                    f"drawn: read {key} from {least:g} to {most:g}; allowed: the least value first"
                )
            if key.endswith("rate") and least <= 0:
                raise ValueError(f"drawn: read {key} from {least:g}; allowed: above 0")
        for values in itertools.product(*self.drawn.values()):
            self._with("", dict(zip(self.drawn, values, strict=True)))

    def profile(self, name: str) -> Profile:
        """Return the profile as it is written, without draws."""
        return Profile(name, self.upstream, self.downstream)

    def draw(self, name: str, rng: Random) -> Profile:
        """Return the profile with a value for each drawn parameter."""
        return self._with(name, {key: _draw(key, *ends, rng) for key, ends in self.drawn.items()})

    def _with(self, name: str, values: Mapping[str, float]) -> Profile:
        """Return the profile with other values of some parameters.

        Raises:
            ValueError: a parameter cannot have its value.
        """
        directions = {each: getattr(self, each) for each in DIRECTIONS}
        for key, value in values.items():
            first, _, rest = key.partition(".")
            which, parameter = ((first,), rest) if first in DIRECTIONS else (DIRECTIONS, key)
            for each in which:
                try:
                    directions[each] = _replaced(directions[each], parameter, value)
                except ValueError as error:
                    raise ValueError(f"drawn: read {key} of {value:g}: {error}") from error
        return Profile(name, **directions)


def _draw(key: str, least: float, most: float, rng: Random) -> float:
    if key.endswith("rate"):
        return math.exp(rng.uniform(math.log(least), math.log(most)))
    return rng.uniform(least, most)


def _replaced(direction: Direction, parameter: str, value: float) -> Direction:
    key, _, of_bursts = parameter.partition(".")
    changed: Any = value
    if of_bursts:
        if not isinstance(direction.loss, Bursts):
            raise ValueError("loss: read no bursts; allowed: bursts")
        changed = replace(direction.loss, **{of_bursts: value})
    return replace(direction, **{key: changed})


def _keys() -> Iterator[str]:
    for parameter in PARAMETERS:
        yield parameter
        for direction in DIRECTIONS:
            yield f"{direction}.{parameter}"


_KEYS: Final = tuple(_keys())
