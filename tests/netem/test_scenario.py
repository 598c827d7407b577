"""Scenarios: names that follow from others."""

from netem.scenario import LinkPlan


def test_a_link_is_named_after_its_hosts() -> None:
    """Impairments and results call it by both, the upstream one first."""
    assert LinkPlan(("cloud", "edge"), "good").name == "cloud-edge"
