from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.netem.figures.figure_file import begin, read_figure_file, write_figure_file
from script.fill_pages import main
from script.stale_figures import MEASURED, UnknownCommandError, measured_by, stale, unfounded

ROOT = Path(__file__).resolve().parents[2]
RUNS = sorted((ROOT / "docs" / "figures").glob("*.json"))

Git = Callable[..., str]


def git_of(folder: Path) -> Git:
    """Return what runs git in a folder and returns what it says."""
    settings = ["-c", "user.name=x", "-c", "user.email=x"]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *settings, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with two commits: a broker, and the figures of a run of the first."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git = git_of(folder)
    git("init", "-q")
    commit(folder, "broker/broker.py", "first", "A broker")
    measured_at = git("rev-parse", "--short", "HEAD")
    origin = replace(begin("penstock netem run links --seeds 1"), commit=measured_at)
    write_figure_file(folder / "run.json", origin, {})
    commit(folder, "README.md", "a page", "Figures of it")
    return folder


def commit(repository: Path, name: str, text: str, message: str) -> None:
    """Commit a file, and whatever else has changed."""
    file = repository / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    git = git_of(repository)
    git("add", "-A")
    git("commit", "-qm", message)


def set_commit(repository: Path, name: str | None) -> None:
    """Write another commit into the figures."""
    file = repository / "run.json"
    found = json.loads(file.read_text())
    found["origin"]["commit"] = name
    file.write_text(json.dumps(found))


def reasons(repository: Path) -> list[str]:
    """Return why the figures may be true no more."""
    return [each.why for each in stale([repository / "run.json"], repository)]


def test_figures_are_stale_once_what_they_measure_has_changed(repository: Path) -> None:
    """A commit elsewhere makes no difference; each of the others is counted, the newest named."""
    commit(repository, "docs.md", "x", "A page of elsewhere")
    commit(repository, "spark_bridge/x.py", "x", "Spark, which no link meets")
    assert reasons(repository) == []
    commit(repository, "broker/broker.py", "second", "A faster broker")
    commit(repository, "netem/relay.py", "second", "A slower link")
    (why,) = reasons(repository)
    assert why.startswith("2 changes since ")
    assert why.endswith(" A slower link")


def test_figures_of_what_was_never_committed_are_stale(repository: Path) -> None:
    """They are of no state that anybody can look at."""
    set_commit(repository, f"{git_of(repository)('rev-parse', '--short', 'HEAD~1')} and changes")
    assert "made with changes that commit" in reasons(repository)[0]
    set_commit(repository, None)
    assert reasons(repository) == ["made by an installed package, so of no commit"]


def test_figures_of_another_history_are_stale(repository: Path) -> None:
    """A commit that was rewritten is not in this history, though git may still have it."""
    git = git_of(repository)
    git("checkout", "-q", "--orphan", "other")
    git("commit", "-qm", "The same files with another history")
    assert reasons(repository)[0].endswith("is not in this history")


def test_a_shallow_clone_does_not_know(repository: Path, tmp_path: Path) -> None:
    """Continuous integration may have the newest commit alone."""
    clone = tmp_path / "clone"
    git_of(tmp_path)("clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    origin, _ = read_figure_file(clone / "run.json")
    assert unfounded(origin, clone) is None
    assert reasons(clone)[0].endswith("is not in this clone")


def test_a_folder_without_git_does_not_know(repository: Path, tmp_path: Path) -> None:
    """An archive of the sources has no history."""
    origin, _ = read_figure_file(repository / "run.json")
    assert unfounded(origin, tmp_path) is None


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.stem)
def test_what_each_run_measures_is_known(file: Path) -> None:
    """A new command needs an entry."""
    assert measured_by(read_figure_file(file)[0].command)


def test_what_is_measured_is_there() -> None:
    """A folder that has moved would make all its figures fresh for ever."""
    paths = {path for paths in MEASURED.values() for path in paths}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_a_run_at_a_site_measures_the_edge_proxy_too() -> None:
    """The entry with the most words counts; a command without one is named."""
    assert "edge_proxy" in measured_by("penstock netem run site-cliff --seeds 1")
    assert "edge_proxy" not in measured_by("penstock netem run links")
    with pytest.raises(UnknownCommandError, match=r"'penstock sing': .*known: script/demo, "):
        measured_by("penstock sing")


def test_stale_figures_are_named_with_their_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each; status 1 where there are any, 0 where not."""
    page = ROOT / "docs" / "evidence" / "fabric.md"
    status = main(["--stale", str(page)])
    lines = capsys.readouterr().out.splitlines()
    assert status == (1 if lines else 0)
    assert all(line.startswith("docs/figures/") and " (fabric.md): " in line for line in lines)
    assert main(["--stale", str(ROOT / "docs" / "how-to" / "lanes.md")]) == 0
