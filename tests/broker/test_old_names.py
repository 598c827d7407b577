from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from penstock.broker.old_names import import_hint
from tests.helpers.process import ROOT

BELOW = "; Penstock's own packages are below penstock: import penstock."


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("from broker.extensions import Plugin", f"{BELOW}broker.extensions"),
        ("import plugins.withholding.policies", f"{BELOW}plugins.withholding.policies"),
        ("from broker.session_journal import X", f"{BELOW}broker.durable.session_journal"),
        ("from broker.config import Policy", f"{BELOW}broker.config.policy"),
        ("import broker.held", f"{BELOW}broker.outbox.large_messages"),
        ("from broker.handlers import X", f"{BELOW}broker.receiving.control_packets"),
        ("from plugins.queue.sqlite_file import X", f"{BELOW}broker.durable.database_file"),
        (
            "from penstock.broker.reports.reporting import X",
            "; it has moved: import penstock.broker.reports.client_reports",
        ),
        ("from broker.outbox import Outbox", f"{BELOW}broker.outbox.outbox"),
        ("from broker import extensions", f"{BELOW}broker"),
        (
            "import penstock.broker.session_journal",
            "; it has moved: import penstock.broker.durable.session_journal",
        ),
        (
            "from penstock.broker.config import Policy",
            "; it has moved: import penstock.broker.config.policy",
        ),
        (
            "from penstock.broker.extensions import LearningGate",
            "; DeliveryGate stands for LearningGate",
        ),
        ("from penstock.broker.extensions import NoSuchGate", ""),
        ("import no_such_module", ""),
    ],
)
def test_an_old_name_is_told_with_the_one_that_holds(
    statement: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever form the import has; nothing is said of what was never Penstock's."""
    name = f"old_{abs(hash(statement))}"
    (tmp_path / f"{name}.py").write_text(f"{statement}\n")
    # Without the checkout, whose folders would be found as namespace packages.
    path = [entry for entry in sys.path if entry and Path(entry) != ROOT]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *path])
    with pytest.raises(ImportError) as caught:
        importlib.import_module(name)
    assert import_hint(caught.value) == hint


MODULES_OF_BEFORE = """
    broker: access access_control acknowledging addresses admission authenticating arrival backlog
    bridges capabilities client_log client_report client_topics collector config
    config_file connecting connection core counters database_file delivery driver eager errors
    events extensions faults fitting handlers held inflight journal ledger limits lingering link
    listener_config listeners local_only log_lines login_backoff lone_packets machine_memory
    message message_run mqtt.topics mqtt_options open_files outbox outbox_rules outgoing
    outgoing_properties payload persistence persistence_config plugin_loader priority_outbox
    probes program proxy_header publishing rate_limit receipts received_bytes records redelivery
    reporting restoring retained retained_delivery revocation room rounds routing runs sampling
    scanning sending server session session_database session_journal session_quota
    session_registry shared_subscriptions spare_memory succession sys_topics tcp_options throttle
    timers tls topic_aliases topic_tree transport websocket wills
    netem: changes gathering messages mistakes topics watch runner relay scenario
    plugins: access.turns console.words queue.client queue.sqlite_file withholding.policies
"""
"""Modules that plugins could import when all of the broker lay in one folder."""


def modules_of_before() -> list[str]:
    """Return their names, each with its package."""
    lines = re.split(r"(\w+): ", MODULES_OF_BEFORE.strip())[1:]
    packages = zip(lines[::2], lines[1::2], strict=True)
    return [f"{package}.{name}" for package, names in packages for name in names.split()]


@pytest.mark.parametrize("name", modules_of_before())
def test_each_module_of_before_is_told_as_one_that_exists(name: str) -> None:
    """What the hint names can be imported, and is a module, no mere package."""
    told = import_hint(ModuleNotFoundError(f"No module named {name!r}", name=name))
    found = importlib.util.find_spec(told.rpartition(" ")[2])
    assert found is not None
    assert found.submodule_search_locations is None, told


def test_what_is_no_import_error_gets_no_hint() -> None:
    """A plugin may fail in other ways."""
    assert import_hint(ValueError("broker.extensions")) == ""
    assert import_hint(None) == ""
