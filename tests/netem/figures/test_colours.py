"""Which brokers a report compares, and their colours."""

from __future__ import annotations

import dataclasses

from penstock.netem.figures.colours import (
    FOCUS_COLOUR,
    OVER_COLOUR,
    find_focus,
    find_over,
    paint,
)
from penstock.netem.runs.scenario import Broker, Target
from tests.helpers.netem_runs import SCENARIO


def test_the_focus_is_the_broker_of_the_first_target() -> None:
    """Without targets it is Penstock; it is compared with mosquitto before others."""
    brokers = {name: Broker("penstock") for name in ("none", "adaptive")}
    brokers |= {"amqtt": Broker("amqtt"), "mosquitto": Broker("mosquitto")}
    target = Target("lost", "adaptive", at_most=0)
    scenario = dataclasses.replace(SCENARIO, brokers=brokers, targets=[target])
    assert (find_focus(scenario), find_over(scenario)) == ("adaptive", "mosquitto")
    assert find_focus(dataclasses.replace(scenario, targets=[])) == "none"
    strangers = {name: brokers[name] for name in ("none", "adaptive", "amqtt")}
    assert find_over(dataclasses.replace(scenario, brokers=strangers)) == "amqtt"
    alone = dataclasses.replace(scenario, brokers={"adaptive": brokers["adaptive"]})
    assert find_over(alone) is None
    assert list(paint(alone)) == ["adaptive"]


def test_brokers_have_colours_of_their_own() -> None:
    """Blue for the focus, vermilion for what it is compared with, these two first."""
    names = ("none", "mosquitto", "adaptive", "historic", "conservative", "probabilistic")
    brokers = {n: Broker("mosquitto" if n == "mosquitto" else "penstock") for n in names}
    colours = paint(dataclasses.replace(SCENARIO, brokers=brokers))
    assert list(colours)[:3] == ["adaptive", "mosquitto", "none"]
    assert set(colours) == set(names)
    assert colours["adaptive"] == FOCUS_COLOUR
    assert colours["mosquitto"] == OVER_COLOUR
    assert len(set(colours.values())) == len(names)
