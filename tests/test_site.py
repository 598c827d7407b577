"""docs/ as a site: each link leads somewhere, and no page loads anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.process import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
)
"""What a browser fetches from another host to show a page; links to click are not meant."""


UNREAD = re.compile(r"<p>(?:(?!</p>).)*?\n(?:- |\d+\. |\||```)[^\n]*", re.DOTALL)
"""A list, a table or a block that became a paragraph: Markdown wants an empty line before it."""


def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """With `mkdocs build --strict`, as it is published."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    built = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")
    }
    assert {"index.html", "how-to/index.html", "repository/CHANGELOG.html"} <= set(pages)
    assert {name: found for name, page in pages.items() if (found := LOADED.findall(page))} == {}
    assert {name: found for name, page in pages.items() if (found := UNREAD.findall(page))} == {}
