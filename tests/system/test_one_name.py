"""What others call `broker` or `plugins` is theirs, and Penstock's own is below `penstock`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.programs import PROGRAMS
from tests.helpers.process import ROOT, anonymous_policy, running_broker
from tests.helpers.wire import connected

BARE = ("broker", "edge_proxy", "models", "netem", "plugins", "spark_bridge")
"""Names of folders that are no names of packages."""

OF_THE_USER = """
from amqtt.plugins.base import BasePlugin


class Bell(BasePlugin):
    async def on_broker_post_start(self):
        print("the bell of the user rings", file=__import__("sys").stderr, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with packages and modules of a user's that have our folders' names."""
    for name in ("plugins", "models", "netem"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    (tmp_path / "plugins" / "bell.py").write_text(OF_THE_USER)
    (tmp_path / "broker.py").write_text("raise SystemExit('the user's own broker.py')\n")
    return tmp_path


async def test_a_plugin_in_the_users_folder_plugins_is_hosted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plugins.bell.Bell` is the user's, and the policy's `withholding` is ours."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    plugins: dict[str, Any] = {"plugins.bell.Bell": {}, "probing": None, "withholding": None}
    policy = anonymous_policy(plugins=plugins)
    with running_broker(policy, folder) as broker:
        broker.wait_for_log("the bell of the user rings")
        async with await connected(broker.port) as client:
            assert await client.subscribe("t") == 0


def test_programs_import_nothing_by_a_bare_name(folder: Path) -> None:
    """Whatever stands beside the user's script or on PYTHONPATH changes nothing."""
    programs = [name for name in PROGRAMS if name != "bench"]
    code = (
        "import sys\nfrom penstock.__main__ import main\n"
        f"for program in {programs!r}:\n"
        "    status = main([program, '--help'])\n"
        f"    bare = [name for name in {BARE!r} if name in sys.modules]\n"
        "    print('imported:', program, bare, status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert told == [f"imported: {program} [] 0" for program in programs], done.stderr


def test_public_names_are_there() -> None:
    """And nothing is imported for those that nobody asks for."""
    assert penstock.QueueClient.__module__ == "penstock.plugins.queue.client"
    assert penstock.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="Borker"):
        _ = penstock.Borker


def test_a_wheel_holds_one_name_and_is_built_from_an_sdist_without_tests(tmp_path: Path) -> None:
    """Files, not links; all of the wheel's below `penstock`, and no test in either."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("penstock", *BARE):
        unbuilt = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=unbuilt)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "policy.example.yaml"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_docs.py", checkout / "tests")  # setuptools would add it
    build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=checkout, check=True, capture_output=True
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert folders == {"penstock", "penstock_mqtt.egg-info"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(sdist)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    installed = {name.split("/")[0] for name in names}
    assert {name for name in installed if not name.endswith(".dist-info")} == {"penstock"}
    assert not [name for name in names if name.startswith("penstock/models/papers")]
    assert {
        "penstock/__main__.py",
        "penstock/models/planner/planning.py",
        "penstock/broker/server.py",
        "penstock/netem/scenarios/field-run.yaml",
        "penstock/plugins/console/page/app.js",
        "penstock/plugins/queue/client.py",
        "penstock/plugins/queue/engines/redis/library.lua",
        "penstock/policy.example.yaml",
        "penstock/py.typed",
    } <= set(names)
