"""What was run, beside the tables: ``run.json``.

A report is made from a folder alone: this file says which experiment its rows are of, how to make
them again, and on what.
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
"""Of the file, in the folder of the run."""


class ProcessorShare(NamedTuple):
    """How busy a broker was.

    Attributes:
        broker: name.
        seed: of the run.
        share: processor time of its process and those it has started, from the beginning of the
            traffic to the end of the run, by that time: 1 is one core.
    """

    broker: str
    seed: int
    share: float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run of a scenario.

    Attributes:
        scenario: as it was run: with the durations and the seeds of its length.
        length: which of its two lengths.
        command: that makes it again.
        commit: of Penstock's source, short, with ``and changes`` where it was changed; None
            where it is not a checkout.
        machine: cores, model, memory, kernel.
        python: version.
        date: of the beginning, ISO 8601 with the offset from UTC.
        versions: broker name to program and version.
        processor: of each broker and seed.
        remarks: what makes the figures doubtful, a line each.
        engine: what made links, ``tun`` or ``tc``; None where nobody has written it down.
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
    engine: str | None = None


_FORM: Final = TypeAdapter(RunInfo)


def write_run_info(folder: Path, info: RunInfo) -> Path:
    """Write what was run beside its tables.

    Returns:
        The file; what was there before is replaced.

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
    """Read what `write_run_info` has written.

    Raises:
        NetemError: there is no such file, or it says something else: a line for each mistake,
            with the place in it.
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
