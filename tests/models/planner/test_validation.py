from __future__ import annotations

from penstock.models.planner.costs import Costs
from penstock.models.planner.delivery import predict, variants
from penstock.models.planner.live_run import LiveRunResult, SubscriberShare
from penstock.models.planner.scaled_fleet import scale
from penstock.models.planner.validation import compare, describe
from tests.models.planner.small_plan import make_fleet

FLEET = make_fleet(("devices: [cameras, sensors]", "devices: [sensors]"))


def found_with(share: SubscriberShare, core_ratio: float) -> dict[str, list[str]]:
    """Return the rows of a comparison in which all subscribers had the same."""
    pair = ("sensors", "operators")
    replayed = SubscriberShare(1000, 1000, 500, 900.0)
    measured = LiveRunResult({pair: [share] * 8}, {pair: [replayed] * 8}, core_ratio, 0.01)
    rows = compare(scale(FLEET, 60.0), measured)["validation"].rows
    return {row[0]: list(row[1:]) for row in rows}


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    """For any schedule, and for that of the run, which decides; the core has no schedule."""
    scaled = scale(FLEET, 60.0)
    variant = next(variants(scaled.fleet, "sensors", "operators"))
    success = predict(scaled.fleet, Costs(), "sensors", "operators", variant).success
    rows = found_with(SubscriberShare(1000, 900, 520, 900.0), 0.5)
    predicted, replayed, measured, over, verdict = rows["sensors to operators: delivered"]
    assert predicted == format(success, ".3g")
    assert (replayed, measured) == ("1 (1 to 1)", "0.9 (0.9 to 0.9)")
    assert over == "0.900 (0.900 to 0.900)"
    assert verdict == "met"
    assert rows["sensors to operators: mean time to delivery, s"][2:] == [
        "1 (1 to 1)",
        "1.111 (1.111 to 1.111)",
        "met",
    ]
    assert rows["broker, of a core"][-1] == "missed"


def test_what_differs_is_told() -> None:
    """A verdict for each row."""
    rows = found_with(SubscriberShare(1000, 100, 50, 500.0), 1e-6)
    assert {row[-1] for row in rows.values()} == {"missed"}


def test_what_was_run_is_said() -> None:
    """How many of what, how many times as fast, and what was left out."""
    told = describe(scale(FLEET, 60.0))
    assert "5 cameras, 20 sensors, 8 operators, " in told
    assert "back ends and links are left out" in told
    linked = scale(FLEET, 60.0, has_links=True)
    assert "links as they are while good, one each, for 60 s" in describe(linked)


def test_a_busy_machine_is_told() -> None:
    """Its lateness is in every figure, so there is no verdict."""
    pair = ("sensors", "operators")
    shares = {pair: [SubscriberShare(10, 9, 8, 5.0)] * 8}
    for late, is_told in ((0.01, False), (0.2, True)):
        tables = compare(scale(FLEET, 60.0), LiveRunResult(shares, shares, 0.1, late))
        assert ("busy" in tables["validated"].rows[1][0]) is is_told
        verdicts = {row[-1] for row in tables["validation"].rows}
        assert (verdicts == {"not shown: busy machine"}) is is_told
