"""Names of earlier versions: an error of a plugin that imports one says the present name."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Final

PACKAGES: Final = ("broker", "edge_proxy", "models", "netem", "plugins", "spark_bridge")
"""Packages that a plugin must import from `penstock`, not as top-level names."""

_RENAMED_MODULES: Final = {
    "broker.arrival": "broker.network.accepted",
    "broker.config": "broker.config.policy",
    "broker.config_file": "broker.config.checked_yaml",
    "broker.eager": "broker.sending.run_now",
    "broker.fitting": "broker.mqtt.size_limit",
    "broker.handlers": "broker.receiving.control_packets",
    "broker.held": "broker.outbox.large_messages",
    "broker.journal": "broker.durable.journal",
    "broker.lingering": "broker.network.lingering_close",
    "broker.outbox_rules": "broker.outbox.rules",
    "broker.persistence_config": "broker.config.policy",
    "broker.reporting": "broker.reports.client_reports",
    "broker.restoring": "broker.durable.recovery",
    "broker.rounds": "broker.reports.periodic_work",
    "broker.routing": "broker.receiving.publish_routing",
    "broker.sending": "broker.sending.sender",
    "broker.session_database": "broker.durable.database",
    "broker.session_registry": "broker.sessions.registry",
    "broker.succession": "broker.sessions.user_change",
    "netem.changes": "netem.links.link_variation",
    "netem.gathering": "netem.runs.result_rows",
    "netem.messages": "netem.links.forwarder_messages",
    "netem.mistakes": "netem.checked_yaml",
    "netem.topics": "broker.mqtt.topics",
    "netem.watch": "netem.runs.withheld_watch",
    "plugins.sqlite_file": "broker.durable.database_file",
    "plugins.turns": "plugins.access.fair_queue",
    "plugins.words": "plugins.console.report_text",
}
"""Package and last name of those whose files have other names, in whichever folder they were; files
that have only moved are found."""

_RENAMED_CLASSES: Final = {
    "Listeners": "Callbacks",
    **dict.fromkeys(("CopyingStore", "CountingStore", "ReferenceStore"), "PayloadStore"),
    **dict.fromkeys(("ProbingSampler", "RunSampler", "SparingSampler"), "LinkSampler"),
    **dict.fromkeys(
        ("BreakingGate", "LearningGate", "OpenGate", "OrderingGate", "SubscriberGate"),
        "DeliveryGate",
    ),
    "ThresholdGate": "DeliveryGate",
}

_CANNOT_IMPORT: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_IMPORT: Final = re.compile(r"\s*(?:from|import)\s+([\w.]+)")


def import_hint(error: BaseException | None, module: str = "") -> str:
    """Return what to import in place of a name of an earlier version; "" for other errors.

    Args:
        error: raised by the import of a plugin.
        module: that the policy file names.
    """
    if not isinstance(error, ImportError):
        return ""
    found = _CANNOT_IMPORT.match(str(error))
    if found is not None:
        name, package = found.groups()
        if name in _RENAMED_CLASSES and package.startswith("penstock."):
            return f"; {_RENAMED_CLASSES[name]} stands for {name}"
        asked = package
    else:
        asked = error.name or ""
        for source in (_imported_by(error), module):
            if source.startswith(f"{asked}."):
                asked = source
    name = asked.removeprefix("penstock.")
    if name.partition(".")[0] not in PACKAGES:
        return ""
    new = f"penstock.{_place(name)}"
    if asked.startswith("penstock."):
        return "" if new == asked else f"; it has moved: import {new}"
    return f"; Penstock's own packages are below penstock: import {new}"


def _imported_by(error: ImportError) -> str:
    """Return the module that the statement which raised an error asks for; "" where unknown."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    line = linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
    found = _IMPORT.match(line)
    return found[1] if found is not None else ""


def _place(name: str) -> str:
    """Return where a module is, both as its name below `penstock`."""
    root = Path(__file__).parent.parent
    path = root.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file():
        return name
    package = name.partition(".")[0]
    renamed = _RENAMED_MODULES.get(f"{package}.{path.name}")
    if renamed is not None:
        return renamed
    moved = sorted((root / package).rglob(f"{path.name}.py"))
    if len(moved) != 1:
        return name if path.is_dir() else package
    return ".".join(moved[0].with_suffix("").relative_to(root).parts)
