"""The comparison of two configurations: what changes live, and what needs a restart.

A configuration is flattened to values by key path, such as ``("limits", "queued_messages")``. What
is not set and what is None are the same. A table says of key paths whether they can change live:
the longest beginning of a path that stands in it decides. So an owner of keys, such as a plugin,
says in one line what it takes, and names exceptions beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, TypeAlias

from penstock.broker.config.listener_config import Listener, listener_keys
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.operations_contract import Reloaded

KeyPath: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[KeyPath, Any]
"""A flattened configuration: the path of each key that is set to its value."""


def flatten(config: Any, path: KeyPath = ()) -> dict[KeyPath, Any]:
    """Return the values of a configuration by key path; mappings and dataclasses are gone into."""
    if isinstance(config, Listener):
        config = listener_keys(config)
    elif is_dataclass(config):
        config = {key.name: getattr(config, key.name) for key in fields(config)}
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not config:
        return {path: config}
    flat: dict[KeyPath, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, (*path, str(key)))
    return flat


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences of a new configuration from the one in force.

    Attributes:
        live: key paths whose new values count from now on.
        needs_restart: key paths whose new values count after a restart.
        in_force: the values that count from now on.
    """

    live: tuple[KeyPath, ...]
    needs_restart: tuple[KeyPath, ...]
    in_force: dict[KeyPath, Any]


def compare(in_force: Values, wanted: Values, live: Mapping[KeyPath, bool]) -> Changes:
    """Compare a new configuration with the one in force.

    Args:
        in_force: the values that count.
        wanted: those of the new configuration.
        live: beginning of key paths to whether they change live; what it does not name does not.
    """
    changed = [key for key in {**in_force, **wanted} if not _are_equal(in_force, wanted, key)]
    taken = tuple(key for key in changed if is_live(key, live))
    values = dict(in_force)
    for key in taken:
        values.pop(key, None)
        if key in wanted:
            values[key] = wanted[key]
    left = tuple(key for key in changed if key not in taken)
    return Changes(taken, left, values)


_NOTHING: Final = object()


def _are_equal(one: Values, other: Values, key: KeyPath) -> bool:
    return bool(one.get(key, _NOTHING) == other.get(key, _NOTHING))


def is_live(key: KeyPath, live: Mapping[KeyPath, bool]) -> bool:
    """Say whether a key path changes live: the longest beginning in the table decides.

    ``*`` in the table stands for any one key.
    """
    for n_keys in range(len(key), -1, -1):
        for beginning in _beginnings(key[:n_keys]):
            if beginning in live:
                return live[beginning]
    return False


def _beginnings(key: KeyPath) -> Iterator[KeyPath]:
    """Yield a path, then the same with ``*`` in place of one of its keys."""
    yield key
    for number in range(len(key)):
        yield (*key[:number], "*", *key[number + 1 :])


def show_keys(paths: Iterable[KeyPath]) -> list[str]:
    """Return key paths as users write them, joined by dots, without those below another one."""
    found = set(paths)
    return sorted(
        ".".join(path)
        for path in found
        if not any(path[:n_keys] in found for n_keys in range(1, len(path)))
    )


def failures(error: PenstockError, file: str, place: str) -> dict[str, str]:
    """Return why something cannot be used, by key; or by file and line, in a file that a key names.

    Args:
        error: of a configuration, or another one.
        file: the configuration file.
        place: the key for an error that names none.
    """
    if not isinstance(error, ConfigError):
        return {place: str(error)}
    return {
        problem.path if error.file == file else f"{error.file}: {problem.path}": (
            f"read {problem.read}; allowed: {problem.allowed}"
        )
        for problem in error.problems
    }


class InForce:
    """The configuration that counts in a running program, and the account of its reloads.

    Attributes:
        values: its keys.
    """

    def __init__(self, file: str, values: Values, logger: logging.Logger) -> None:
        """Begin with the configuration of the start."""
        self.values = dict(values)
        self._file = file
        self._logger = logger

    def refuse(self, failed: PenstockError | Mapping[str, str]) -> Reloaded:
        """Return the account of a reload that has changed nothing, and log it."""
        if isinstance(failed, PenstockError):
            failed = failures(failed, self._file, self._file)
        self._logger.error("not reloaded: %s; nothing has changed", _listed(failed))
        return Reloaded(failed=failed)

    def take(self, changes: Changes, read: Sequence[str], failed: Mapping[str, str]) -> Reloaded:
        """Return the account of a reload that has changed what can change, and log it.

        Args:
            changes: the differences.
            read: files that were read, each behind its key.
            failed: key to why it could not change after all: the next reload tries it again.
        """
        taken = [key for key in changes.live if not _is_among(key, failed)]
        for key in taken:
            self.values.pop(key, None)
            if key in changes.in_force:
                self.values[key] = changes.in_force[key]
        changed, left = show_keys(taken), show_keys(changes.needs_restart)
        told = (
            f"reloaded: {', '.join(read) or 'no files'}; changed: {', '.join(changed) or 'no keys'}"
        )
        if left:
            told += f"; needs a restart: {', '.join(left)}"
        if failed:
            told += f"; failed: {_listed(failed)}"
        self._logger.log(logging.WARNING if left or failed else logging.INFO, "%s", told)
        return Reloaded(read, changed, left, failed)


def _is_among(key: KeyPath, failed: Iterable[str]) -> bool:
    """Say whether a key has failed, or what stands above or below it."""
    shown = f"{'.'.join(key)}."
    return any(shown.startswith(f"{one}.") or f"{one}.".startswith(shown) for one in failed)


def _listed(failed: Mapping[str, str]) -> str:
    return "; ".join(f"{key}: {why}" for key, why in failed.items())
