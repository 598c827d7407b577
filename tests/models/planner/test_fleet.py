from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.models.planner.fleet import (
    BackEnd,
    BadPath,
    Devices,
    Fleet,
    LinkClass,
    Machine,
    Subscribers,
    read_fleet,
)
from tests.helpers.examples import default_of, in_bytes, section, shown
from tests.models.planner.small_plan import EXAMPLE, SMALL, make_fleet

SECTIONS: dict[tuple[str, ...], type[Any]] = {
    (): Fleet,
    ("links", "mobile"): LinkClass,
    ("links", "mobile", "bad"): BadPath,
    ("devices", "sensors"): Devices,
    ("subscribers", "operators"): Subscribers,
    ("back_ends", "recognition"): BackEnd,
    ("machine",): Machine,
}
"""Where the keys of each part of the file stand in the example."""


def test_the_example_is_a_fleet_of_cameras_and_sensors() -> None:
    """500 cameras and 20,000 sensors, who are some 20,500 clients with their operators."""
    fleet = read_fleet(EXAMPLE)
    assert fleet.devices["cameras"].count == 500
    assert fleet.devices["sensors"].count == 20_000
    assert fleet.n_clients == 20_520


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        pytest.param(keys, field, id=".".join((*keys, field.name)))
        for keys, config in SECTIONS.items()
        for field in fields(config)
    ],
)
def test_every_key_is_in_the_example_and_shown_defaults_are_the_defaults(
    keys: tuple[str, ...], field: Field[Any]
) -> None:
    """No key is left out, and a key behind a comment sign has its true default."""
    is_set, with_defaults = shown(EXAMPLE)
    assert field.name in section(with_defaults, keys)
    if field.name not in section(is_set, keys):
        assert in_bytes(section(with_defaults, keys)[field.name]) == default_of(field)


def test_nothing_else_is_in_the_example() -> None:
    """It is read with all defaults set, too."""
    _, with_defaults = shown(EXAMPLE)
    validate_config(Fleet, with_defaults, EXAMPLE.name, "")


def test_a_link_has_its_mean_rate_over_its_phases() -> None:
    """Two thirds of the time at 500 kB/s and one at 10."""
    link = make_fleet().links["mobile"]
    assert link.bad_ratio == pytest.approx(1 / 3)
    assert link.mean_rate == pytest.approx((2 * 500_000 + 10_000) / 3)
    assert make_fleet().links["wired"].mean_rate == 1_000_000


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("count: 5", "count: 0", "devices.cameras.count: read 0; allowed: greater than or equal"),
        ("count: 5, ", "", "devices.cameras.count: read nothing; allowed: a value; this key"),
        ("count: 5", "conut: 5", "devices.cameras.conut: read an unknown key; allowed: "),
        ("payload_bytes: 100\n", "payload_bytes: 5 furlongs\n", "devices.sensors.payload_bytes"),
        ("lifetime_seconds: 20", "lifetime_seconds: 0.5", "devices.sensors.lifetime_seconds: read"),
        ("payload_bytes: 100\n", "payload_bytes: 300 MB\n", "devices.sensors.payload_bytes: read"),
        (
            "link: mobile",
            "link: moon",
            "subscribers.operators.link: read 'moon'; allowed: wired, m",
        ),
        (
            "devices: [cameras]",
            "devices: [camera]",
            "back_ends.recognition.devices[0]: read 'camera'; allowed: each once of cameras, sen",
        ),
        (
            "[cameras, sensors]",
            "[cameras, cameras]",
            "subscribers.operators.devices[1]: read 'cameras'; allowed: each once of",
        ),
        ("    off_seconds: 10\n", "", "devices.sensors.off_seconds: read null; allowed: a time"),
        ("    bad_seconds: 10\n", "", "links.mobile.bad_seconds: read null; allowed: a time above"),
        ("loss_ratio: 0.1", "loss_ratio: 1", "links.mobile.bad.loss_ratio: read 1; allowed: less"),
        ("success_ratio: 0.9", "success_ratio: 0", "back_ends.recognition.success_ratio: read 0"),
        ("  operators:", "  op/erators:", "subscribers.op/erators"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    """The place, what was read and what is allowed."""
    file = tmp_path / "plan.yaml"
    assert old in SMALL
    file.write_text(SMALL.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_fleet(file)
    assert told in str(caught.value)


def test_a_fleet_for_nobody_is_refused(tmp_path: Path) -> None:
    """Subscribers or back ends are what a plan is about."""
    file = tmp_path / "plan.yaml"
    text, _, machine = SMALL.partition("subscribers:")
    file.write_text(text + machine[machine.index("machine:") :])
    with pytest.raises(ConfigError, match="subscribers or back_ends, one or more"):
        read_fleet(file)
