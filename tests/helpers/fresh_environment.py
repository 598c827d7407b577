"""A new virtual environment that gets Penstock from the checkout, and nothing over the network."""

from __future__ import annotations

import sysconfig
from fnmatch import fnmatch
from pathlib import Path


def without_index(folder: Path) -> dict[str, str]:
    """Return environment variables with which `pip install .` finds all else in this environment.

    Args:
        folder: a new folder, for links to all packages of this environment but Penstock.
    """
    folder.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not fnmatch(each.name.lower(), "*penstock*"):
            (folder / each.name).symlink_to(each)
    return {
        "PYTHONPATH": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }
