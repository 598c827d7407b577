"""The hook of mkdocs that lets pages link to files of the repository outside docs/.

mkdocs knows the files of docs/ alone. Each other file that a page links is added to the site below
`repository/`, and links to it lead there. The same pages are read on GitHub, so the links in them
are those of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]

ADDED: Final = "repository/"
"""The folder of the site that has the files from outside docs/."""

TABS: Final = (
    "README.md",
    "tutorial.md",
    "How to",
    "Reference",
    "Explanation",
    "Evidence",
    "code.md",
)
"""The pages and the folders of docs/, in the order in which the site shows them."""

LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")
"""The target of a Markdown link or picture that names a file, without its anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link, and those that the added pages link in turn."""
    pages = list(files.documentation_pages())
    while pages:
        page = pages.pop()
        for link in LINK.findall(page.content_string):
            place = _place_in_site(_target(page, link))
            if not place.startswith(ADDED) or files.get_file_from_path(place):
                continue
            source = ROOT / place.removeprefix(ADDED)
            if source.is_file():
                added = File.generated(config, place, abs_src_path=str(source))
                files.append(added)
                pages += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to where the site has the file; mkdocs reports those that name none."""
    del config
    here = posixpath.dirname(page.file.src_uri) or "."

    def in_site(link: re.Match[str]) -> str:
        place = _place_in_site(_target(page.file, link[1]))
        return posixpath.relpath(place, here) if files.get_file_from_path(place) else link[1]

    return LINK.sub(in_site, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Show pages and folders in order, without the folder of the files from outside docs/."""
    del config, files
    named = {_name(item): item for item in nav.items}
    nav.items = [named[name] for name in TABS if name in named]
    return nav


def _name(item: StructureItem) -> str:
    return item.file.src_uri if isinstance(item, Page) else item.title or ""


def _target(page: File, link: str) -> str:
    """Return the path in the repository that a link of a page names."""
    path = page.src_uri
    path = path.removeprefix(ADDED) if path.startswith(ADDED) else f"docs/{path}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _place_in_site(path: str) -> str:
    """Return where the site has a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else ADDED + path
