"""The description of a run beside its tables: ``run.json``.

A report is made from the folder of a run alone. This file holds the scenario of the tables, the
command that makes them again, and the machine and versions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from penstock.broker.config.key_types import STRICT
from penstock.netem.checked_yaml import MistakesError, fit
from penstock.netem.errors import NetemError, RunError
from penstock.netem.runs.scenario import Scenario

NAME: Final = "run.json"
"""The name of the file in the folder of the run."""


class ProcessorShare(NamedTuple):
    """The processor time of a broker.

    Attributes:
        seed: the seed of the run.
        share: the processor time of its process and those it has started, from the beginning of the
            traffic to the end of the run, divided by that time: 1 is one core.
    """

    broker: str
    seed: int
    share: float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run of a scenario.

    Attributes:
        scenario: the scenario with the durations and the seeds of this length.
        commit: short commit of Penstock's source, with ``and changes`` if it was modified; None
            without a checkout.
        machine: the machine's cores, model, memory and kernel.
        date: the time of the beginning, ISO 8601 with the offset from UTC.
        versions: the program and version of each broker, by the broker's name.
        remarks: the reasons to doubt the figures, a line each.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    scenario: Scenario
    length: Literal["full", "short"]
    command: str
    commit: str | None
    machine: str
    python: str
    date: str
    versions: dict[str, str]
    processor: list[ProcessorShare]
    remarks: list[str] = field(default_factory=list)


_FORM: Final = TypeAdapter(RunInfo)


def write_run_info(folder: Path, info: RunInfo) -> Path:
    """Write the description of a run beside its tables.

    Returns:
        The path of the file; an existing file is replaced.

    Raises:
        RunError: it cannot be written.
    """
    path = folder / NAME
    try:
        path.write_bytes(_FORM.dump_json(info, indent=1) + b"\n")
    except OSError as error:
        raise RunError(f"{path}: {error}") from error
    return path


def read_run_info(folder: Path) -> RunInfo:
    """Read the file that `write_run_info` wrote.

    Raises:
        NetemError: the file cannot be read, or holds mistakes: a line for each mistake, with its
            place in the file.
    """
    path = folder / NAME
    try:
        return fit(RunInfo, json.loads(path.read_bytes()))
    except OSError as error:
        reason = error.strerror or str(error)
        raise NetemError(f"{path}: read {reason}; allowed: a file that can be read") from error
    except (ValueError, RecursionError) as error:
        raise NetemError(f"{path}: {error}") from error
    except MistakesError as error:
        raise error.of(path) from error
