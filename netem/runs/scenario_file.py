"""Scenarios in files: the papers' experiments and our own come with Penstock, a user's are read.

The keys are those of `penstock.netem.runs.scenario.Scenario` without its name: the file's name is
the name. The additional key ``short`` holds an overlay for a short run: mappings are merged key by
key, a null removes a key, and any other value replaces the value below it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock.netem.checked_yaml import Mistake, MistakesError, Place, fit, read_yaml
from penstock.netem.errors import NetemError
from penstock.netem.runs.scenario import Scenario
from penstock.netem.runs.scenario_checks import find_mistakes

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
"""Of the scenarios that come with Penstock."""

_ENDS: Final = (".yaml", ".yml")


def names() -> list[str]:
    """Return the names of the scenarios that come with Penstock, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_scenario(name_or_path: str, *, short: bool = False) -> Scenario:
    """Read a scenario.

    Args:
        name_or_path: of one that comes with Penstock; or a file, which has a slash in it or ends
            in ``.yaml`` or ``.yml``.
        short: whether to lay what stands under ``short`` over the rest.

    Raises:
        NetemError: there is none, it cannot be read, or it says what cannot be: one line for each
            mistake, with the file, the place in it, what was read and what is allowed.
    """
    path = _find(name_or_path)
    mapping = read_yaml(path)
    try:
        base, over = _take_apart(mapping)
    except MistakesError as error:
        raise error.of(path) from error
    if not short:
        over = {}
    try:
        return _understand(_lay_over(base, over) | {"name": path.stem})
    except MistakesError as error:
        told = [Mistake(_place_in_file(each.place, over), each.words) for each in error.mistakes]
        raise MistakesError(told).of(path) from error


def _take_apart(mapping: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what stands in a file without ``short``, and what stands there."""
    over = mapping.pop("short", {})
    if not isinstance(over, dict):
        raise MistakesError([Mistake(("short",), f"read {over!r}; allowed: a mapping")])
    if "name" in mapping | over:
        raise MistakesError(
            [Mistake(("name",), "read a key; allowed: none; the file's name is the name")]
        )
    return mapping, over


def _understand(mapping: dict[str, Any]) -> Scenario:
    scenario = fit(Scenario, mapping)
    if found := list(find_mistakes(scenario)):
        raise MistakesError(found)
    return scenario


def _find(name_or_path: str) -> Path:
    if "/" in name_or_path or name_or_path.endswith(_ENDS):
        return Path(name_or_path)
    if name_or_path not in names():
        raise NetemError(
            f"scenario: read {name_or_path!r}; allowed: {', '.join(names())}, or a file"
        )
    return FOLDER / f"{name_or_path}.yaml"


def _lay_over(mapping: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping with another laid over it."""
    laid = dict(mapping)
    for key, value in over.items():
        if value is None:
            laid.pop(key, None)
        elif isinstance(value, dict) and isinstance(laid.get(key), dict):
            laid[key] = _lay_over(laid[key], value)
        else:
            laid[key] = value
    return laid


def _place_in_file(place: Place, over: Any) -> Place:
    """Return where a value stands in the file: under ``short``, or where it would without."""
    for part in place:
        if not isinstance(over, dict):
            break  # it stands in a list or is a value, with nothing from elsewhere in it
        if part not in over:
            return place
        over = over[part]
    return ("short", *place) if place else place
