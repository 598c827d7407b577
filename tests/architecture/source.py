"""The modules of the repository and what each of them imports, read from their text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALLED_PACKAGES: Final = (
    "broker",
    "plugins",
    "edge_proxy",
    "netem",
    "spark_bridge",
    "models",
    "lanes",
)
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
class Source:
    """What is read from one file.

    Attributes:
        imports: everywhere in it: at the top, in functions and under TYPE_CHECKING.
        n_code_lines: lines that hold code.
    """

    imports: tuple[Import, ...]
    n_code_lines: int


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


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statements below a node, in lists; no expression holds one."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(node, name, ()):
            yield part.body


def _statements(node: ast.AST, *, is_for_typing: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield every statement below a node, and whether it stands under ``if TYPE_CHECKING``."""
    for block in _blocks(node):
        typing = is_for_typing or (_is_type_checking(node) and block is getattr(node, "body", None))
        for statement in block:
            yield statement, typing
            yield from _statements(statement, is_for_typing=typing)


@cache
def _is_module(dotted: str, root: Path) -> bool:
    path = root.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def read_imports(tree: ast.Module, root: Path = ROOT) -> list[Import]:
    """Return all imports of a module.

    Raises:
        ValueError: one is relative.
    """
    found = []
    for node, is_for_typing in _statements(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"line {node.lineno}: relative import")
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.append(submodule if _is_module(submodule, root) else node.module)
        names = [name.removeprefix(NAME) for name in dict.fromkeys(names)]
        found += [Import(name, node.lineno, is_for_typing) for name in names]
    return found


def n_code_lines(text: str, tree: ast.Module) -> int:
    """Return the lines that hold code: no docstring, no comment, nothing empty."""
    prose: set[int] = set()
    for node, _ in _statements(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        number not in prose and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in lines
    )


@cache
def read_source(path: Path) -> Source:
    """Return what the tests ask of a file, given from the root of the repository.

    The file is parsed once in a process. Its tree is not kept: the trees of all files are
    millions of objects.
    """
    text = (ROOT / path).read_text()
    tree = ast.parse(text)
    return Source(tuple(read_imports(tree)), n_code_lines(text, tree))


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
        modules.append(Module(module_name(path), path, read_source(path).imports))
    return tuple(sorted(modules, key=lambda module: module.name))
