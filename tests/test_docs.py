"""README.md and docs/: names, paths, links, commands and policies in them are those of the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import __main__ as command_line
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.plugin_loader import load_plugins
from penstock.edge_proxy.sidecar.config import parse_proxy_config
from penstock.plugins.web.tls import TlsError

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CODE = DOCS / "code.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
PAGES += sorted(DOCS.rglob("*.md"))

PACKAGES = ("broker", "plugins", "edge_proxy", "netem", "spark_bridge", "models")
"""Folders that are imported as `penstock.…`."""

CHECKED_ELSEWHERE = {
    "cluster.md",
    "listeners.md",
    "edge-proxy.md",
    "extension-points.md",
    "netem.md",
    "plugins.md",
    "scenarios.md",
}
"""Pages whose YAML needs files that a test makes, or is not a policy; tests/ has each."""


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code: its language and its text."""


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the fenced blocks of a page, of some languages."""
    for language, text in re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        if language in languages:
            yield text


def breaches(found: Iterator[tuple[Path, str]]) -> list[str]:
    """Return a line for each breach, with its page."""
    return [f"{page.relative_to(ROOT)}: {text}" for page, text in found]


def exists(name: str) -> bool:
    """Say whether a dotted name is that of a module, or of something in one."""
    module = name
    rest: list[str] = []
    while module:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
            continue
        for attribute in rest:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def test_every_name_exists() -> None:
    """Who follows a name finds a module, a class or a function."""

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in PAGES:
            for name in re.findall(r"`(penstock\.\w[\w.]*)`", page.read_text()):
                if not exists(name):
                    yield page, name

    assert breaches(wrong()) == []


def test_the_map_of_the_code_names_nothing_without_its_package() -> None:
    """A dotted name there is complete, so that the test above sees it."""
    names = re.findall(r"`(\w+(?:\.\w+)+)`", CODE.read_text())
    assert len(names) > 80
    assert [name for name in names if not re.match(r"penstock\.|\w+\.py$", name)] == []


def test_every_path_exists() -> None:
    """A folder or a file of ours that a page names is there."""
    tops = (*PACKAGES, "benchmarks", "deploy", "tests", "script", "docs", "penstock")
    path = re.compile(rf"`((?:{'|'.join(tops)})/[\w./-]*)`")

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in PAGES:
            for name in path.findall(page.read_text()):
                if not re.search("NAME|CLIENT_ID", name) and not (ROOT / name).exists():
                    yield page, name

    assert breaches(wrong()) == []


def anchors(page: Path) -> set[str]:
    """Return what a link may name of a page: its headings, as GitHub writes them."""
    text = FENCED.sub("", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_link_is_dead() -> None:
    """Each file of the repository that a page links is there, and so is the heading in it."""

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in {*PAGES, *ROOT.glob("*.md")}:
            links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
            for link in links:
                if link.startswith(("http:", "https:")):
                    continue
                name, _, anchor = link.partition("#")
                target = (page.parent / name) if name else page
                if not target.exists() or (anchor and anchor not in anchors(target)):
                    yield page, link

    assert breaches(wrong()) == []


def test_the_entry_page_has_at_most_twelve_links() -> None:
    """More are a list, and a list is searched, not read."""
    assert len(re.findall(r"\]\(", (DOCS / "README.md").read_text())) <= 12


def test_every_page_is_linked() -> None:
    """A reader of docs/README.md comes to each page by links."""
    seen: set[Path] = set()
    found = [DOCS / "README.md"]
    while found:
        page = found.pop()
        if page in seen or page.suffix != ".md" or DOCS not in page.parents:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)", page.read_text())
        found += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(DOCS.rglob("*.md")) - seen == set()


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of a page that is ours, in blocks and between backticks."""
    text = page.read_text()
    lines = "\n".join(blocks(page, "", "sh", "text")).replace("\\\n", " ").splitlines()
    prose = FENCED.sub("", text)
    lines += [re.sub(r"\s+", " ", line) for line in re.findall(r"`([^`]+)`", prose)]
    for line in lines:
        found = re.match(r"(?:\$ |sudo )*(?:\S*/)?(penstock |python -m )([^#&>|]*)", line)
        if found:
            start = [] if found[1] == "penstock " else ["-m"]
            yield [*start, *shlex.split(found[2])]


GROUPS = {
    *(
        "client",
        "cluster",
        "log",
        "netem",
        "plan",
        "queue",
        "retained",
        "spark",
        "subscription",
        "topic",
    ),
    "uplink",
}
"""Programs whose first word may be a command."""


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the help of a program; "" where there is no such program."""
    status: int | str | None
    if words[0] != "-m":
        is_group = (
            words[0] in GROUPS
            and len(words) > 1
            and (words[1].isalpha() or words[1].endswith(".yaml") or words[1] == "--from-running")
        )
        status = command_line.main([*words[: 2 if is_group else 1], "--help"])
    else:
        name = words[1]
        if (ROOT / name.replace(".", "/")).is_dir():
            name += ".__main__"
        main = importlib.import_module(name).main
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [name, "--help"])
            try:
                status = main(["--help"]) if inspect.signature(main).parameters else main()
            except SystemExit as ended:
                status = ended.code
    shown = capsys.readouterr().out
    return shown if not status else ""


def test_every_command_exists_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """What is copied from a page is taken."""
    seen: dict[tuple[str, ...], str] = {}

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in PAGES:
            for words in commands(page):
                if words[0].endswith(":") or words[0].startswith("--") or words[0].isupper():
                    continue  # a program's message, an option of `penstock` itself, or any program
                if words[0] == "-m" and words[1].startswith("penstock"):
                    assert exists(words[1]), words
                    continue
                program = tuple(words[:2])
                if program not in seen:
                    seen[program] = help_of(words, capsys)
                options = [word.partition("=")[0] for word in words if word.startswith("--")]
                if not seen[program] or any(one not in seen[program] for one in options):
                    yield page, " ".join(words)

    assert breaches(wrong()) == []
    assert len(seen) > 20


def test_every_policy_loads() -> None:
    """A policy that is copied from a page starts a broker or a proxy."""

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in PAGES:
            if page.name in CHECKED_ELSEWHERE:
                continue
            for text in blocks(page, "yaml"):
                try:
                    if "\nupstream:" in text:
                        parse_proxy_config(text, page.name)
                        continue
                    load_plugins(
                        parse_policy(text, page.name), operations=BrokerOperations(time.monotonic)
                    )
                except ConfigError as error:
                    yield page, str(error)
                except TlsError:
                    pass  # the certificate is the reader's

    assert breaches(wrong()) == []


def test_what_python_imports_exists() -> None:
    """Code that is copied from a page finds what it names."""

    def wrong() -> Iterator[tuple[Path, str]]:
        for page in PAGES:
            for text in blocks(page, "python"):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.ImportFrom):
                        for alias in node.names:
                            if not exists(f"{node.module}.{alias.name}"):
                                yield page, f"{node.module}.{alias.name}"

    assert breaches(wrong()) == []


def test_every_threat_has_a_test_that_exists() -> None:
    """What the page on security says that holds is held by a test, or by a file of them."""
    page = DOCS / "explanation" / "security.md"
    rows = [row for row in page.read_text().splitlines() if row.startswith("| ")]
    threats = [row for row in rows if not row.startswith(("| Someone", "| ---"))]
    assert len(threats) > 20
    for row in threats:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.rpartition(" | ")[2])
        assert named, row
        for file, name in named:
            defined = ast.walk(ast.parse((ROOT / file).read_text()))
            kinds = ast.FunctionDef, ast.AsyncFunctionDef
            names = {one.name for one in defined if isinstance(one, kinds)}
            assert name in {*names, ""}, (file, name)
