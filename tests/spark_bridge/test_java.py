from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.spark_bridge.java import JavaError, find_java


def java_that_says(folder: Path, text: str) -> Path:
    """Make a Java home whose program prints a text."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return folder


def test_the_java_of_this_machine_is_found() -> None:
    """What Spark would start is what is reported."""
    java = find_java(os.environ)
    assert java.program.name == "java"
    assert int(java.version.split(".")[0]) >= 17


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """Spark's start script takes JAVA_HOME first."""
    home = java_that_says(tmp_path, 'openjdk version "21.0.2" 2024-01-16')
    java = find_java(os.environ | {"JAVA_HOME": str(home)})
    assert (java.program, java.version) == ((home / "bin" / "java").resolve(), "21.0.2")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('java version "1.8.0_392"', "is Java 1.8.0_392; Spark needs Java 17"),
        ('openjdk version "11.0.21" 2023', "is Java 11.0.21; Spark needs Java 17"),
        ("Segmentation fault", "does not tell its version (read 'Segmentation fault"),
    ],
)
def test_a_java_that_spark_cannot_use_is_told(tmp_path: Path, text: str, told: str) -> None:
    """Spark itself would fail over an old Java much later, in its own words."""
    home = java_that_says(tmp_path, text)
    with pytest.raises(JavaError) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    assert told in str(caught.value)
    assert caught.value.status == 2


def test_no_java_at_all_is_told_with_what_to_install(tmp_path: Path) -> None:
    """One line says what is missing and how to get it."""
    with pytest.raises(JavaError, match="no java on the PATH and no JAVA_HOME; Spark needs"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_told(tmp_path: Path) -> None:
    """A stale JAVA_HOME hides a good java on the PATH; it is named."""
    assert shutil.which("java")
    with pytest.raises(JavaError, match=r"JAVA_HOME is '.*', which has no bin/java"):
        find_java(os.environ | {"JAVA_HOME": str(tmp_path)})


def test_a_java_that_does_not_start_is_told(tmp_path: Path) -> None:
    """A broken installation is no traceback."""
    program = java_that_says(tmp_path, "") / "bin" / "java"
    program.chmod(0o644)
    with pytest.raises(JavaError, match="does not start"):
        find_java({"JAVA_HOME": str(tmp_path)})
