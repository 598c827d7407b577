"""The five lines of policy in README.md, and what `penstock why` says under them."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from penstock.plugins.console.report_text import describe
from penstock.plugins.console.why import fetch
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, running_broker
from tests.helpers.slow_link import link_to

README = (ROOT / "README.md").read_text()
PICTURE = bytes(1_000_000)

N_ALARMS = 20


def block(language: str) -> str:
    """Return the first fenced block of a language in the README."""
    return README.partition(f"```{language}\n")[2].partition("```")[0]


def shape(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run: numbers, and what the kernel says."""
    kept = [line for line in lines if not re.match(r"  (TCP|unanswered|unsent|with it)", line)]
    masked = [re.sub(r"\d[\d.,]*( ms| s|%)?", "#", line) for line in kept]
    return [re.sub(r"^messages: .*", "messages", line) for line in masked]


def test_what_why_says_is_what_the_readme_shows(tmp_path: Path) -> None:
    """A picture is held for a subscriber behind a slow link, and an alarm passes it."""
    policy = yaml.safe_load(block("yaml"))
    assert list(policy) == ["plugins"]
    policy["listeners"] = {"default": {"bind": "127.0.0.1:0"}}
    policy["plugins"]["console"] = {"http": "127.0.0.1:0"}
    with (
        running_broker(policy, tmp_path) as broker,
        link_to(broker) as link,
        PahoClient(link.port, "dashboard") as dashboard,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert dashboard.connect()
        assert dashboard.subscribe("alarms/#", 1)
        assert dashboard.subscribe("pictures/#", 1)
        assert publisher.connect()
        link.switch("bad")
        for _ in range(N_ALARMS):  # for a few small messages, no picture is held
            publisher.publish("alarms/door", b"open")
        while fetch(broker.console_url, "dashboard")["link"]["rtt_source"] != "puback":
            pass
        client: dict[str, dict[str, dict[str, str]]] = {"withholding": {"last_decision": {}}}
        while client["withholding"]["last_decision"].get("outcome") != "held":
            publisher.publish("pictures/gate", PICTURE)
            client = fetch(broker.console_url, "dashboard")
        publisher.publish("alarms/door", b"shut")
        topics = [dashboard.message().topic for _ in range(N_ALARMS + 1)]
        assert topics == ["alarms/door"] * (N_ALARMS + 1)
    assert shape(describe(client)) == shape(block("text").splitlines())
