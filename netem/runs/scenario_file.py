"""The files of scenarios: some come with Penstock, and users write their own.

The keys are those of `penstock.netem.runs.scenario.Scenario` without its name: the file's name is
the name. The additional key ``short`` holds an overlay for a short run: mappings are merged key by
key, a null removes a key, and any other value replaces the value below it. The additional key
``inherits`` names a scenario over which the file is laid in the same way, ``short`` included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock.netem.checked_yaml import Mistake, MistakesError, Place, fit, read_yaml
from penstock.netem.errors import NetemError
from penstock.netem.runs.kind_links import find_kind_mistakes, with_kinds
from penstock.netem.runs.scenario import Scenario
from penstock.netem.runs.scenario_checks import find_mistakes

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
"""The folder of the scenarios that come with Penstock."""

_ENDS: Final = (".yaml", ".yml")


def names() -> list[str]:
    """Return the names of the scenarios that come with Penstock, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_scenario(name_or_path: str, *, short: bool = False) -> Scenario:
    """Read a scenario.

    Args:
        name_or_path: the name of a scenario that comes with Penstock; or a file, whose path
            contains a slash or ends in ``.yaml`` or ``.yml``.
        short: whether to lay the overlay ``short`` over the rest.

    Raises:
        NetemError: the scenario does not exist, cannot be read, or has mistakes: one line for each,
            with the file, the place, the value that was read and the allowed ones.
    """
    path = _find(name_or_path)
    mapping = _read_with_inherited(path, ())
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


def _read_with_inherited(path: Path, heirs: tuple[Path, ...]) -> dict[str, Any]:
    """Return the content of a file, laid over the content that it inherits.

    Raises:
        NetemError: a file cannot be read, there is no such scenario, or it inherits from itself.
    """
    mapping = read_yaml(path)
    if "inherits" not in mapping:
        return mapping
    name = mapping.pop("inherits")
    if not isinstance(name, str) or not name:
        raise NetemError(f"{path}: inherits: read {name!r}; allowed: a scenario, or a file")
    try:
        inherited = _find(name, path.parent)
    except NetemError as error:
        raise NetemError(f"{path}: inherits: {error}") from error
    heirs = (*heirs, path.resolve())
    if inherited.resolve() in heirs:
        raise NetemError(
            f"{path}: inherits: read {name!r}; allowed: a scenario that does not inherit this one"
        )
    base = _read_with_inherited(inherited, heirs)
    shorts = base.pop("short", {}), mapping.pop("short", {})
    laid = _lay_over(base, mapping)
    if all(isinstance(each, dict) for each in shorts):
        # A null of a short length removes a key of the full one, not of the other short length.
        laid["short"] = _lay_over(*shorts, keep_nulls=True)
    else:
        laid["short"] = shorts[1]
    return laid


def _take_apart(mapping: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what stands in a file without ``short``, and what stands there."""
    over = mapping.pop("short", {})
    if not isinstance(over, dict):
        raise MistakesError([Mistake(("short",), f"read {over!r}; allowed: a mapping")])
    if "name" in mapping | over:
        raise MistakesError(
            [Mistake(("name",), "read a key; allowed: no name; the scenario has that of its file")]
        )
    return mapping, over


def _understand(mapping: dict[str, Any]) -> Scenario:
    scenario = fit(Scenario, mapping)
    if found := list(find_kind_mistakes(scenario)):
        raise MistakesError(found)
    scenario = with_kinds(scenario)
    if found := list(find_mistakes(scenario)):
        raise MistakesError(found)
    return scenario


def _find(name_or_path: str, beside: Path = Path()) -> Path:
    if "/" in name_or_path or name_or_path.endswith(_ENDS):
        return beside / name_or_path
    if name_or_path not in names():
        raise NetemError(
            f"scenario: read {name_or_path!r}; allowed: {', '.join(names())}, or a file"
        )
    return FOLDER / f"{name_or_path}.yaml"


def _lay_over(
    mapping: dict[str, Any], over: dict[str, Any], *, keep_nulls: bool = False
) -> dict[str, Any]:
    """Return a mapping with another laid over it; a null removes a key, or stays."""
    laid = dict(mapping)
    for key, value in over.items():
        if value is None and not keep_nulls:
            laid.pop(key, None)
        elif isinstance(value, dict) and isinstance(laid.get(key), dict):
            laid[key] = _lay_over(laid[key], value, keep_nulls=keep_nulls)
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
