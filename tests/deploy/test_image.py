"""The image: what its Dockerfile says, done without Docker, as the tests' machine has no daemon.

Each step runs as it stands, but for three things: `/opt/penstock` and `/data` are folders of the
test, packages come from this environment, and the network is a namespace of its own, in which the
image's ports are free.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.fresh_environment import without_index
from tests.helpers.process import Program

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (ROOT / "Dockerfile").read_text()
BIN: Final = Path(sys.executable).parent
READS_ALL: Final = (
    "--inh-caps",
    "-all,+dac_read_search",
    "--ambient-caps",
    "-all,+dac_read_search",
)
"""The test's user may read a checkout in a private folder, and write nothing but its own."""


def instructions() -> Iterator[tuple[str, str]]:
    """Yield each instruction of the Dockerfile with its arguments, in one line."""
    lines = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest


def last(name: str) -> str:
    """Return the arguments of the last instruction of a name."""
    return [rest for found, rest in instructions() if found == name][-1]


def copy_context(folder: Path) -> None:
    """Copy what .dockerignore lets through, which has a list of what it does."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in (line[1:] for line in ignored if line.startswith("!")):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, target)


class Image:
    """What the steps of the Dockerfile have made.

    Attributes:
        folder: the place of the image's root.
        data: the volume.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        (source := folder / "src").mkdir()
        copy_context(source)
        self._environment = {
            "PATH": f"{folder}/opt/penstock/bin:{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            **without_index(folder / "libraries"),
        }
        build, run = (rest for name, rest in instructions() if name == "RUN")
        subprocess.run(
            ["sh", "-euc", self.placed(build)],
            cwd=source,
            env=self._environment | {"HOME": str(folder)},
            check=True,
            capture_output=True,
        )
        # The user is known by its number alone: none is added to the machine of the test.
        _, _, install = run.partition(" && ")
        subprocess.run(["sh", "-euc", self.placed(install)], check=True)

    def placed(self, text: str) -> str:
        """Return a command with the places of the test."""
        return text.replace("/opt/penstock", f"{self.folder}/opt/penstock").replace(
            "/data", str(self.data)
        )

    def as_user(self, *command: str) -> list[str]:
        """Return a command that runs as the image's user."""
        user, _, group = last("USER").partition(":")
        ids = ("--reuid", user, "--regid", group, "--clear-groups")
        return ["setpriv", *ids, *READS_ALL, "--", *command]

    def start(self) -> Program:
        """Start a container: the entry point, with the volume, in a network of its own."""
        entry = words_of(last("ENTRYPOINT"))
        assert entry == ["container-start"]
        program = str(ROOT / "deploy" / "container-start")
        up = 'ip link set lo up && exec "$@"'
        return Program(
            ["unshare", "--net", "sh", "-c", up, "sh", *self.as_user(program)],
            cwd=self.data,
            env=self._environment,
            stdout=subprocess.PIPE,
        )

    def is_healthy(self, container: Program) -> bool:
        """Say what the health check says."""
        command = words_of(last("HEALTHCHECK").partition(" CMD ")[2])
        inside = ["nsenter", "--net", "--target", str(container.process.pid)]
        done = subprocess.run([*inside, *command], env=self._environment, check=False)
        return done.returncode == 0

    def ask(self, container: Program, *words: str) -> str:
        """Return what a command says that runs beside the broker."""
        inside = ["nsenter", "--net", "--target", str(container.process.pid)]
        return subprocess.run(
            [*inside, *self.as_user(*words)],
            cwd=self.data,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout


def words_of(text: str) -> list[str]:
    """Return the words of an instruction in its JSON form."""
    words: list[str] = json.loads(text)
    return words


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """What the Dockerfile makes, in a folder that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-image-"))
    folder.chmod(0o755)
    try:
        yield Image(folder)
    finally:
        shutil.rmtree(folder)


def test_a_container_serves_and_keeps_its_volume(image: Image) -> None:
    """Its first start writes the policy and shows the password; the next one goes on with both."""
    container = image.start()
    try:
        container.wait_for_log("listener default: listening on 0.0.0.0:1883")
        container.wait_for_log("console API listens on http://0.0.0.0:8081")
        assert image.is_healthy(container)
        assert image.ask(container, "penstock", "reload", "--token-file", "operator.token")
        assert container.stop() == 0
        shown = container.process.stdout.read() if container.process.stdout else ""
        assert re.search(r"^Password  \S{20}$", shown, re.MULTILINE)
        written = (image.data / "policy.yaml").read_text()

        container = image.start()
        container.wait_for_log("console API listens on http://0.0.0.0:8081")
        assert container.stop() == 0
    finally:
        if container.process.poll() is None:
            container.kill()
    assert (image.data / "policy.yaml").read_text() == written
    assert {file.stat().st_uid for file in image.data.iterdir()} == {10001}


def test_a_container_runs_other_programs(image: Image) -> None:
    """`docker run penstock COMMAND`; the volume stays as it is."""
    done = subprocess.run(
        [str(ROOT / "deploy" / "container-start"), "--version"],
        env=image._environment | {"HOME": "/"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("penstock ")
    installed = (image.folder / "opt" / "penstock").rglob("penstock/policy.example.yaml")
    assert next(installed, None), "the wheel is not complete"


def test_the_linter_has_nothing_to_say() -> None:
    """Of Dockerfiles, hadolint."""
    done = subprocess.run(
        [str(BIN / "hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_needs_is_let_through() -> None:
    """Each package of the wheel, and the files that pyproject.toml names."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    links = {
        link.readlink().parts[1] for link in (ROOT / "penstock").iterdir() if link.is_symlink()
    }
    assert {f"!{name}" for name in links} <= set(ignored)
    assert os.access(ROOT / "deploy" / "container-start", os.X_OK)
