"""paho's own tests and examples with the import changed, from its source distribution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers.process import ROOT, SECONDS, anonymous_policy, running_broker

IMPORTS = {
    r"^import paho\.mqtt\.client as (\w+)": r"import penstock.lanes.paho as \1",
    r"^from paho\.mqtt import client$": "import penstock.lanes.paho as client",
    r"^from paho\.mqtt\.client import": "from penstock.lanes.paho import",
}

TESTS = ("tests/test_client.py", "tests/test_websocket_integration.py")
"""paho's tests of its client with servers of their own, without those that take minutes."""

OTHER_CONNECT = "--deselect=tests/test_client.py::TestMalformedPacket::test_malformed_connack"
"""Its server compares the CONNECT of MQTT 5, which has user properties here."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution of the paho that is installed, with the import changed."""
    place = tmp_path_factory.mktemp("paho")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(place)]
    package = f"paho-mqtt=={version('paho-mqtt')}"
    subprocess.run([*command, "--no-binary", "paho-mqtt", package], check=True)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    (folder,) = (path for path in place.iterdir() if path.is_dir())
    for script in [*folder.glob("tests/**/*.py"), *folder.glob("examples/*.py")]:
        text = script.read_text()
        for old, new in IMPORTS.items():
            text = re.sub(old, new, text, flags=re.MULTILINE)
        script.write_text(text)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder of the source distribution."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def test_tests_of_the_client_pass(source: Path) -> None:
    """With servers of their own, which are no Penstock."""
    done = run(source, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, OTHER_CONNECT)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("name", ["loop_asyncio", "client_session_present"])
def test_an_example_does_what_it_does_with_one_connection(
    name: str, source: Path, tmp_path: Path
) -> None:
    """With a Penstock: messages of 200,000 bytes by an event loop, and sessions."""
    with running_broker(anonymous_policy(), tmp_path) as broker:
        script = source / "examples" / f"{name}.py"
        public = r"""['"]mqtt\.eclipseprojects\.io['"], 1883"""
        script.write_text(re.sub(public, f"'127.0.0.1', {broker.port}", script.read_text()))
        done = run(script.parent, script.name)
    assert done.returncode == 0, done.stdout
    if name == "client_session_present":
        found = re.findall("Session present: (.*)", done.stdout)
        assert found == ["False", "True", "False"], done.stdout
    else:
        assert re.findall(r"response with (\d+)", done.stdout) == ["200000"] * 3
        assert "Disconnected: Normal disconnection\nFinished\n" in done.stdout
