from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from tests.architecture.source import (
    INSTALLED_PACKAGES,
    ROOT,
    Module,
    n_code_lines,
    read_modules,
    read_source,
)
from tests.helpers.tiers import MORE, SLOW, TOGETHER

MAX_CODE_LINES: Final = 600


def modules() -> list[Module]:
    """Return the modules of the installed packages, without the packages' own."""
    return [
        module
        for module in read_modules()
        if module.package in INSTALLED_PACKAGES and not module.is_package
    ]


def test_each_test_file_stands_in_the_folder_of_what_it_tests() -> None:
    """A reader finds the tests of a folder; a folder of tests whose code has gone is found.

    A test file serves a subject: it stands in the folder of the package, or in one with the name of
    a module.
    """
    places = {module.path.parent for module in modules()}
    places |= {module.path.with_suffix("") for module in modules()}
    strays = [
        file.relative_to(ROOT)
        for package in INSTALLED_PACKAGES
        for file in (ROOT / "tests" / package).rglob("test_*.py")
        if file.parent.relative_to(ROOT / "tests") not in places
    ]
    assert not strays


def test_the_tables_of_tiers_name_what_there_is() -> None:
    """A file or a test that gets another name would change its tier unnoticed."""
    for name in {*SLOW, *MORE, *(name for group in TOGETHER for name in group)}:
        beginning, _, test = name.partition("::")
        assert (found := list(ROOT.glob(f"{beginning}*"))), name
        assert not test or f"def {test.partition('[')[0]}" in found[0].read_text(), name


def source_files() -> list[Path]:
    """Return every Python file that is written by hand."""
    folders = (*INSTALLED_PACKAGES, "benchmarks", "script", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return sorted(file.relative_to(ROOT) for file in [*files, *(ROOT / "penstock").glob("*.py")])


def test_prose_is_no_code() -> None:
    """No docstring is shortened, and no class halved, for a ruler."""
    text = '"""Says\nmuch."""\n\n# Why.\nA = 1\n"""Of A."""\n\n\ndef f():\n    return """a\nb"""\n'
    assert n_code_lines(text, ast.parse(text)) == 4


def test_no_module_is_too_long() -> None:
    """A module that has grown past the limit is split."""
    found = {path: read_source(path).n_code_lines for path in source_files()}
    assert not {path: lines for path, lines in found.items() if lines > MAX_CODE_LINES}
