"""The alert rules and the Grafana board, held against what a running broker and a proxy serve."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.cluster import running_brokers
from tests.helpers.operated import HOLDING
from tests.helpers.process import SECONDS, anonymous_policy, running_broker
from tests.helpers.sidecar import before, running_sidecar
from tests.helpers.wire import connected

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
RULES: Final = DEPLOY / "prometheus" / "alerts.yaml"
ALERTS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
BOARD: Final = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
FROM_PROMETHEUS: Final = {"instance", "job"}
"""Labels that Prometheus adds to what it scrapes."""

RARE: Final = {
    "penstock_publish_refused_total": {"reason"},
    "penstock_connections_refused_total": {"reason"},
}
"""Metrics without a sample while all is well, and their labels."""

SELECTOR: Final = re.compile(r"\b((?:penstock|process)_\w+)(?:\{([^}]*)\})?")
CONSOLE: Final = {"http": "127.0.0.1:0"}


def board_expressions() -> list[str]:
    """Return the expressions of the board, its variables filled in as Grafana does."""
    expressions = [
        target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])
    ]
    return [one.replace("$__rate_interval", "1m").replace("$instance", ".*") for one in expressions]


Labels = dict[str, set[str]]
"""Names of series to the labels that their samples have."""


def scraped(url: str) -> Labels:
    """Return what is told at an address."""
    with urlopen(f"{url}/metrics", timeout=SECONDS) as answer:  # noqa: S310 (ours)
        text = answer.read().decode()
    found: Labels = {}
    for family in text_string_to_metric_families(text):
        # A family without samples is there, and its labels are not known yet.
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
        found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def traffic(port: int) -> None:
    """Have messages of each kind that labels tell of: small, large, held, dropped and queued."""
    async with (
        await connected(port, "reader", clean_start=True) as reader,
        await connected(port, "publisher") as publisher,
    ):
        await reader.subscribe("#", 1)
        for topic, n_bytes in (("large", 5_000), ("small", 1), ("jobs/1", 1)):
            await publisher.publish(topic, bytes(n_bytes))
        for _ in range(2):
            packet = await reader.take(Publish)
            await reader.send(PubAck(packet.packet_id))
        await reader.take(Publish)
    # The session has ended; what it had not acknowledged is dropped.


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labels]:
    """What an edge broker with all plugins, one of a cluster, and a proxy tell Prometheus."""
    folder = tmp_path_factory.mktemp("broker")
    cloud = {"upstream": {"address": "127.0.0.1:9"}, "up": [{"filter": "up/#"}]}
    groups = {"default": {"dead_letter_queue": "dead"}}
    queues = {"jobs": {"topics": ["jobs/#"], "groups": groups}, "dead": {}}
    plugins = {
        **HOLDING,
        "withholding": {**HOLDING["withholding"], "max_withhold": 0.01},
        "console": CONSOLE,
        "queue": {"http": None, "path": "queue.db", "queues": queues},
        "uplink": {"site": "berlin", "uplinks": {"cloud": cloud}},
    }
    policy = anonymous_policy(plugins, persistence={"path": "sessions.db"})
    proxy_file = before(9, plugins={"console": CONSOLE})
    with (
        running_broker(policy, folder) as broker,
        running_brokers(folder, "node", plugins={"console": CONSOLE}) as cluster,
        running_sidecar(proxy_file, folder) as proxy,
    ):
        asyncio.run(traffic(broker.port))
        found = scraped(proxy.wait_for_match(r"console API listens on (http://\S+)")[1])
        for one in (broker, cluster["node"]):
            for name, labels in scraped(one.console_url).items():
                found.setdefault(name, set()).update(labels)
        yield found


def test_each_name_and_label_is_one_of_a_running_broker(told: Labels) -> None:
    """A renamed metric would leave a graph empty, and an alert silent."""
    wrong = []
    for expression in [*(alert["expr"] for alert in ALERTS), *board_expressions()]:
        found = SELECTOR.findall(expression)
        wrong += [name for name, _ in found if name not in told]
        asked = {label for _, labels in found for label in re.findall(r"(\w+)\s*[=!]", labels)}
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            asked |= {label.strip() for label in group.split(",")}
        for name, _ in found:
            known = told.get(name, set()) | FROM_PROMETHEUS | RARE.get(name, set())
            wrong += [f"{name}: {label}" for label in asked - known]
    assert not wrong


def promtool(*words: str) -> None:
    """Run it; what it complains of fails the test."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_they_fire() -> None:
    """Each by the example of a broker in trouble; none for one that is well."""
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(RULES.with_name("alerts_test.yaml")))


def test_prometheus_takes_the_expressions_of_the_board(tmp_path: Path) -> None:
    """As rules that record them."""
    rules = [{"record": f"n{n}", "expr": one} for n, one in enumerate(board_expressions())]
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]})
    )
    promtool("check", "rules", str(tmp_path / "rules.yaml"))


def test_prometheus_takes_the_configuration(tmp_path: Path) -> None:
    """With the rules, and the broker's token, beside it."""
    for name in ("prometheus.yaml", "alerts.yaml"):
        (tmp_path / name).write_text((DEPLOY / "prometheus" / name).read_text())
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "prometheus.token").write_text("token")
    promtool("check", "config", str(tmp_path / "prometheus.yaml"))


def test_each_alert_says_what_to_do() -> None:
    """In a line, and in a paragraph of the page that it names; the links of pages are checked."""
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    told = re.findall(r"^### (Penstock\w+)\n\n\S", page, re.MULTILINE)
    assert told == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        texts = alert["annotations"]
        assert texts["summary"].endswith(".")
        assert texts["description"].endswith(".")
        assert texts["runbook"] == f"docs/how-to/operations.md#{alert['alert'].lower()}"


def test_panels_have_places_and_numbers_of_their_own() -> None:
    """Two with one number, or one over the other, are seen as one."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
