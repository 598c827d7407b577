"""The program that writes the figures of docs/figures/ into the pages.

Rerun: ``python -m script.fill_pages`` after a run has written its file; a test compares both.
``--stale`` changes nothing, and names the figures whose code has changed since they were measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from penstock.netem.figures.figure_file import figure_files, fill_page
from script.stale_figures import stale

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def main(argv: list[str] | None = None) -> int:
    """Fill every page, and print the names of those that have changed.

    Returns:
        0; with ``--stale`` 1 where figures may be out of date.
    """
    parser = argparse.ArgumentParser("python -m script.fill_pages", description=__doc__)
    parser.add_argument("--stale", action="store_true", help="name figures of changed code")
    parser.add_argument("pages", nargs="*", type=Path, help="README.md and those of docs/ if none")
    given = parser.parse_args(argv)
    pages = [page.resolve() for page in given.pages] or PAGES
    if given.stale:
        return _tell_stale(pages)
    for page in pages:
        before, filled = page.read_text(encoding="utf-8"), fill_page(page)
        if filled != before:
            page.write_text(filled, encoding="utf-8")
            print(page.relative_to(ROOT))
    return 0


def _tell_stale(pages: list[Path] | tuple[Path, ...]) -> int:
    shown = {page: figure_files(page) for page in pages}
    found = list(stale(sorted(set().union(*shown.values())), ROOT))
    for each in found:
        by = ", ".join(page.name for page, files in shown.items() if each.file in files)
        print(f"{each.file.relative_to(ROOT)} ({by}): {each.why}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
