"""The modules of the repository and what each of them imports, read from their text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALLED_PACKAGES: Final = ("broker", "plugins", "edge_proxy", "netem", "spark_bridge", "models")
OUR_PACKAGES: Final = (*INSTALLED_PACKAGES, "benchmarks", "penstock")
NAME: Final = "penstock."
"""All that is installed is below this name; the table leaves it out."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module.

    Attributes:
        module: dotted name; of the submodule where ``from package import submodule`` names one.
        line: where it stands.
        is_for_typing: whether it stands under ``if TYPE_CHECKING``.
    """

    module: str
    line: int
    is_for_typing: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One file of ours.

    Attributes:
        name: dotted; of the package for an ``__init__.py``.
        path: from the root of the repository.
        imports: everywhere in it: at the top, in functions and under TYPE_CHECKING.
    """

    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    @property
    def is_package(self) -> bool:
        """Whether this is an ``__init__.py``."""
        return self.path.name == "__init__.py"

    def our_imports(self) -> list[Import]:
        """Return those of modules of this repository."""
        return [found for found in self.imports if found.module.partition(".")[0] in OUR_PACKAGES]


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _statements(node: ast.AST, *, is_for_typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, is_for_typing
        if _is_type_checking(child):
            assert isinstance(child, ast.If)
            for statement in child.body:
                yield statement, True
                yield from _statements(statement, is_for_typing=True)
            for statement in child.orelse:
                yield statement, is_for_typing
                yield from _statements(statement, is_for_typing=is_for_typing)
        else:
            yield from _statements(child, is_for_typing=is_for_typing)


def _is_module(dotted: str, root: Path) -> bool:
    path = root.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def read_imports(text: str, root: Path = ROOT) -> list[Import]:
    """Return all imports of a source text.

    Raises:
        ValueError: one is relative.
    """
    found = []
    for node, is_for_typing in _statements(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"line {node.lineno}: relative import")
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.append(submodule if _is_module(submodule, root) else node.module)
        assert isinstance(node, ast.stmt) or not names
        line = getattr(node, "lineno", 0)
        names = [name.removeprefix(NAME) for name in dict.fromkeys(names)]
        found += [Import(name, line, is_for_typing) for name in names]
    return found


def module_name(path: Path) -> str:
    """Return the dotted name of a file given from the root of the repository."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def read_modules() -> tuple[Module, ...]:
    """Return every module of our packages and of the command, by name."""
    files = [file for package in OUR_PACKAGES for file in (ROOT / package).rglob("*.py")]
    modules = []
    for file in [*files, *sorted((ROOT / "penstock").glob("*.py"))]:
        path = file.relative_to(ROOT)
        modules.append(Module(module_name(path), path, tuple(read_imports(file.read_text()))))
    return tuple(sorted(modules, key=lambda module: module.name))
