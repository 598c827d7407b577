from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import curves
from benchmarks.curves import CURVES, filters_shape
from benchmarks.loads.stream import Traffic

PNG = b"\x89PNG"


MEASURED = ("clients", "filters", "rate")
"""One for each way of measuring a point."""


def test_curves_are_measured_point_by_point_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each curve runs, loses nothing, and stands in the data and the picture.

    On one broker: `benchmarks.peers` makes another one a matter of its name.
    """
    monkeypatch.delitem(curves.PEER_COLOURS, "mosquitto")
    for name in MEASURED:
        curve = CURVES[name]
        points = curve.quick_points if name == "clients" else curve.quick_points[:1]
        monkeypatch.setitem(CURVES, name, replace(curve, quick_points=points))
    file = tmp_path / "curves.json"
    assert curves.main(["--quick", "--curves", ",".join(MEASURED), "--data", str(file)]) == 0
    data = json.loads(file.read_text())
    assert tuple(data) == MEASURED
    for name, curve in data.items():
        assert curve["points"] == list(CURVES[name].quick_points)
        assert curve["run"]["command"] == f"python -m benchmarks.curves --curves {name}"
        (told,) = curve["series"].values()
        assert len(told["value"]) == len(curve["points"])
        assert not any(told["lost"])
    assert file.with_suffix(".png").read_bytes().startswith(PNG)


def test_other_curves_stay_where_some_are_measured(tmp_path: Path) -> None:
    """One curve can be measured anew without the minutes of all."""
    file = tmp_path / "curves.json"
    kept = {"points": [1], "series": {"penstock": {"value": [2.0], "tail": []}}, "run": {}}
    file.write_text(json.dumps({"size": kept}))
    assert curves.main(["--redraw", "--data", str(file)]) == 0
    assert json.loads(file.read_text()) == {"size": kept}
    assert file.with_suffix(".png").read_bytes().startswith(PNG)
    assert curves.main(["--curves", "nothing", "--data", str(file)]) == 2


@pytest.mark.parametrize("filters", CURVES["filters"].points)
def test_each_subscriber_of_the_filters_is_due_some_messages(filters: int) -> None:
    """A load whose subscriber expects nothing would not know when it is at its end."""
    traffic = Traffic(filters_shape(min(filters, 10_000)))
    assert all(subscription.stream.block for subscription in traffic.expectations)
