from __future__ import annotations

from penstock.edge_proxy.aggregator.lanes import LanesKeys, lanes_of
from penstock.edge_proxy.aggregator.remapping import DownRule, Rule


def test_without_keys_there_is_one_lane() -> None:
    """It has all rules, and the names of the uplink."""
    [lane] = lanes_of(None, [Rule("a/#")], [DownRule("b/#")])
    assert (lane.name, lane.up, lane.down) == ("", [Rule("a/#")], [DownRule("b/#")])
    assert lane.of("cloud", "-") == "cloud"


def test_by_topic_each_rule_is_of_one_lane() -> None:
    """By its topics at the site: a filter that holds all of them makes it one of the large lane."""
    keys = LanesKeys("topic", large=["site/cameras/#", "firmware/+"])
    up = [Rule("sensors/#", remote_prefix="r/"), Rule("cameras/1/#", local_prefix="site/")]
    down = [DownRule("firmware/oven"), DownRule("commands/#")]
    keys.check([*up, *down])
    small, large = lanes_of(keys, up, down)
    assert (small.name, small.up, small.down) == ("", [up[0]], [down[1]])
    assert (large.name, large.up, large.down) == ("large", [up[1]], [down[0]])
    assert large.of("cloud", "-") == "cloud-large"


def test_by_size_both_lanes_have_all_rules() -> None:
    """Each for its size class."""
    small, large = lanes_of(LanesKeys("size"), [Rule("a/#")], [DownRule("b/#")])
    assert (small.up, small.down, small.sizes) == ([Rule("a/#")], [DownRule("b/#")], "small")
    assert (large.up, large.down, large.sizes) == (small.up, small.down, "large")
