"""Finds the Java that Spark will use, before Spark fails on it with a less clear error."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.spark_bridge.errors import BridgeError

LEAST_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION: Final = re.compile(r'version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"')
_ANSWER_SECONDS: Final = 30.0


class JavaError(BridgeError):
    """No suitable Java is installed."""

    status = 2


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime.

    Attributes:
        version: the version that it prints, such as ``17.0.15``.
    """

    program: Path
    version: str


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java that Spark's start script uses.

    Raises:
        JavaError: there is no Java, or it is too old.
    """
    advice = f"Spark needs Java {LEAST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless)"
    home = environment.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not program.is_file():
            raise JavaError(f"JAVA_HOME is {home!r}, which has no bin/java; {advice}")
    else:
        found = shutil.which("java", path=environment.get("PATH", ""))
        if found is None:
            raise JavaError(f"no java on the PATH and no JAVA_HOME; {advice}")
        program = Path(found)
    text = _ask_version(program, environment)
    match = _VERSION.search(text)
    if match is None:
        raise JavaError(f"{program} does not tell its version (read {text[:80]!r}); {advice}")
    if int(match["major"]) < LEAST_JAVA:
        raise JavaError(f"{program} is Java {match['text']}; {advice}")
    return Java(program.resolve(), match["text"])


def _ask_version(program: Path, environment: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, "-version"],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{program} does not start: {error}") from error
    return answer.stderr + answer.stdout
