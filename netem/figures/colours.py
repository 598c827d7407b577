"""The colour of each broker that a report compares, which is the same in all plots.

The palette is one that colour-blind people can distinguish. The broker that the scenario is about
is blue, the one it is compared with vermilion.
"""

from __future__ import annotations

from typing import Final

from penstock.netem.runs.scenario import Scenario

FOCUS_COLOUR: Final = "#0072B2"
OVER_COLOUR: Final = "#D55E00"
OTHER_COLOURS: Final = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
"""The colours of Okabe and Ito, and two more."""


def find_focus(scenario: Scenario) -> str:
    """Return the broker that the scenario is about: its first target's, or the first Penstock."""
    if scenario.targets:
        return scenario.targets[0].broker
    ours = [name for name, plan in scenario.brokers.items() if plan.kind == "penstock"]
    return [*ours, *scenario.brokers][0]


def find_over(scenario: Scenario) -> str | None:
    """Return the broker that it is compared with: mosquitto, or the first other one, if any."""
    others = [name for name in scenario.brokers if name != find_focus(scenario)]
    peers = [name for name in others if scenario.brokers[name].kind == "mosquitto"]
    strangers = [name for name in others if scenario.brokers[name].kind != "penstock"]
    return next(iter([*peers, *strangers, *others]), None)


def paint(scenario: Scenario) -> dict[str, str]:
    """Return a colour for each broker: of the one in focus, what it is compared with, others."""
    focus, over = find_focus(scenario), find_over(scenario)
    colours = {focus: FOCUS_COLOUR}
    if over is not None:
        colours[over] = OVER_COLOUR
    others = [name for name in scenario.brokers if name not in colours]
    for place, name in enumerate(others):
        colours[name] = OTHER_COLOURS[place % len(OTHER_COLOURS)]
    return colours
