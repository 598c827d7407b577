"""Write into the pages what the files of runs in docs/figures/ have.

Rerun: ``python -m script.fill_pages`` after a run has written its file; a test compares both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from penstock.netem.figures.figure_file import fill_page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def main(argv: list[str] | None = None) -> None:
    """Fill every page, and print the names of those that were not as their files.

    Args:
        argv: arguments; None for those of the process.
    """
    argparse.ArgumentParser("python -m script.fill_pages", description=__doc__).parse_args(argv)
    for page in PAGES:
        before, filled = page.read_text(encoding="utf-8"), fill_page(page)
        if filled != before:
            page.write_text(filled, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
