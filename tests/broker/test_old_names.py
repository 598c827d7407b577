from __future__ import annotations

import importlib
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


def test_what_is_no_import_error_gets_no_hint() -> None:
    """A plugin may fail in other ways."""
    assert import_hint(ValueError("broker.extensions")) == ""
    assert import_hint(None) == ""
