from __future__ import annotations

from penstock.models.planner.costs import Costs
from penstock.models.planner.delivery import predict, variants
from penstock.models.planner.scaled import scale
from penstock.models.planner.trial import Measured, Share
from penstock.models.planner.validation import compare, describe
from tests.models.planner.small_plan import make_fleet

FLEET = make_fleet(("devices: [cameras, sensors]", "devices: [sensors]"))


def found_with(share: Share, core_ratio: float) -> dict[str, list[str]]:
    """Return the rows of a comparison in which all subscribers had the same."""
    measured = Measured({("sensors", "operators"): [share] * 8}, core_ratio, 0.01)
    rows = compare(scale(FLEET, 60.0), measured)["validation"].rows
    return {row[0]: list(row[1:]) for row in rows}


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    """Within 15 % of it, and the core too."""
    scaled = scale(FLEET, 60.0)
    variant = next(variants(scaled.fleet, "sensors", "operators"))
    success = predict(scaled.fleet, Costs(), "sensors", "operators", variant).success.value
    rows = found_with(Share(1000, round(1000 * success * 1.1), 500, 900.0), 0.5)
    _, measured, deviation, verdict = rows["sensors to operators: delivered"]
    assert measured.startswith(f"{success * 1.1:.3g}"[:3])
    assert deviation.startswith("+10.")
    assert verdict == "met"
    assert rows["broker, of a core"][-1] == "missed"


def test_what_differs_is_told() -> None:
    """A verdict for each row."""
    rows = found_with(Share(1000, 100, 50, 500.0), 1e-6)
    assert {row[-1] for row in rows.values()} == {"missed"}


def test_what_was_run_is_said() -> None:
    """How many of what, how many times as fast, and what was left out."""
    told = describe(scale(FLEET, 60.0))
    assert "5 cameras, 20 sensors, 8 operators, " in told
    assert "back ends and links are left out" in told
