"""A wall clock and a time since the boot that a test sets for a program.

A folder before all others on Python's path makes the program add to both what a file says at that
moment. The machine's own clocks stay as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

_SITE = '''"""Sets clocks; see `tests.campaigns.faults.set_clocks`."""
import json, time
_wall, _gettime = time.time, time.clock_gettime
def _ahead():
    with open({path!r}, encoding="ascii") as file:
        return json.load(file)
def _of(clock):
    return _gettime(clock) + (_ahead()["boot"] if clock == time.CLOCK_BOOTTIME else 0.0)
time.time = lambda: _wall() + _ahead()["wall"]
time.clock_gettime = _of
'''


class SetClocks:
    """The clocks of programs that are started with `environment`.

    Attributes:
        folder: the folder of two files, the first on Python's path.
    """

    def __init__(self, folder: Path) -> None:
        self._wall = self._boot = 0.0
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "clocks.json"
        site = _SITE.format(path=str(self._file))
        (folder / "sitecustomize.py").write_text(site, encoding="ascii")
        self._write()

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a program that is to see these clocks."""
        path = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock so many seconds before or behind the machine's; no time passes."""
        self._wall = seconds
        self._write()

    def pass_down(self, seconds: float) -> None:
        """Let time pass for programs that do not run."""
        self._wall += seconds
        self._boot += seconds
        self._write()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"wall": self._wall, "boot": self._boot}), encoding="ascii")
        new.replace(self._file)
