"""Rules of an uplink: what passes, by which name, and where a loop ends."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.edge_proxy.uplink.remapping import (
    DownRule,
    Loops,
    Remapping,
    Rule,
    in_parts,
    of_parts,
)

SITE, HOPS, VIA = "penstock-site", "penstock-hops", "penstock-via"


def test_prefixes_are_exchanged_in_both_directions() -> None:
    """What goes up under a name comes down under the other one."""
    local, remote = "plant/", "sites/berlin/plant/"
    remapping = Remapping([Rule("+/t", 2, local, remote)], [DownRule("+/t", 2, local, remote)])
    assert remapping.up("plant/oven/t") == "sites/berlin/plant/oven/t"
    assert remapping.down("sites/berlin/plant/oven/t") == "plant/oven/t"
    assert remapping.up("plant/oven/p") is None
    assert remapping.up("sites/berlin/plant/oven/t") is None
    assert remapping.down("plant/oven/t") is None


def test_no_rule_passes_nothing() -> None:
    """A direction without rules is closed."""
    remapping = Remapping([], [])
    assert remapping.up("a") is None
    assert remapping.down("a") is None
    assert not remapping.up_filters()


def test_the_first_rule_that_matches_names_the_topic() -> None:
    """Two rules overlap: the order of the file decides."""
    remapping = Remapping(
        [Rule("a/#", remote_prefix="x/"), Rule("#", remote_prefix="y/")],
        [DownRule("#", remote_prefix="y/"), DownRule("a", local_prefix="z/", remote_prefix="y/")],
    )
    assert remapping.up("a/b") == "x/a/b"
    assert remapping.up("b") == "y/b"
    assert remapping.down("y/a") == "a"


def test_an_empty_filter_maps_one_topic_to_another() -> None:
    """As a mosquitto bridge's `topic "" out 1 local remote`."""
    remapping = Remapping([Rule("", local_prefix="a/b", remote_prefix="c")], [])
    assert remapping.up("a/b") == "c"
    assert remapping.up("a/b/c") is None


@pytest.mark.parametrize(
    ("local_prefix", "remote_prefix", "topic", "renamed"),
    [
        ("a/", "b/c/", "a", "b/c"),
        ("a/", "", "a", None),
        ("a/", "/", "a", None),
        ("", "b/", "a", "b/a"),
    ],
)
def test_the_parent_of_a_multi_level_wildcard_passes_where_it_has_a_name(
    local_prefix: str, remote_prefix: str, topic: str, renamed: str | None
) -> None:
    """`a/#` matches `a`, whose other name is the other prefix without its slash."""
    rule = Rule("#", local_prefix=local_prefix, remote_prefix=remote_prefix)
    assert Remapping([rule], []).up(topic) == renamed


def test_a_wildcard_names_no_topic_below_a_dollar() -> None:
    """A prefix taken away must not turn a message into one of $SYS [MQTT-4.7.2-1]."""
    remapping = Remapping([Rule("#", local_prefix="x/")], [DownRule("#", remote_prefix="x/")])
    assert remapping.down("x/$SYS/broker/uptime") is None
    assert remapping.up("x/$SYS/broker/uptime") is None
    told = Remapping([Rule("$SYS/#", remote_prefix="sites/berlin/")], [])
    assert told.up("$SYS/broker/uptime") == "sites/berlin/$SYS/broker/uptime"


def test_a_topic_that_becomes_too_long_does_not_pass() -> None:
    """[MQTT-4.7.3-3] holds for the name in the cloud, too."""
    remapping = Remapping([Rule(remote_prefix="€/")], [])
    longest = MAX_STRING_BYTES - len("€/".encode())
    assert remapping.up("a" * longest) == "€/" + "a" * longest
    assert remapping.up("a" * (longest + 1)) is None


def test_the_local_broker_is_asked_for_each_filter_once_with_the_highest_qos() -> None:
    """Two rules with one local filter are one subscription."""
    remapping = Remapping(
        [Rule("a", qos=0), Rule("a", qos=1, remote_prefix="x/"), Rule("b", 0, "c/")], []
    )
    assert remapping.up_filters() == {"a": 1, "c/b": 0}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"filter": ""}, "filter"),
        ({"filter": "a#"}, "filter"),
        ({"filter": "#", "local_prefix": "a"}, "local_prefix"),
        ({"filter": "+/b", "remote_prefix": "a"}, "remote_prefix"),
        ({"local_prefix": "+/"}, "local_prefix without"),
        ({"remote_prefix": "$share/a/"}, "remote_prefix without"),
        ({"filter": "$share/a/b"}, r"\$share/"),
        ({"qos": 3}, "qos"),
        ({"direction": "in"}, "direction"),
    ],
)
def test_a_wrong_rule_names_what_is_wrong(keys: dict[str, object], told: str) -> None:
    """Each side's filter has to be a topic filter."""
    with pytest.raises(ValidationError, match=told):
        Rule(**keys)  # type: ignore[arg-type]


def test_a_message_that_goes_up_names_its_site_and_counts_its_hops() -> None:
    """The first site stays, later ones are added; hops count on; others stay in their order."""
    first = Loops("berlin", 8).up([("a", "1"), ("b", "2")])
    assert first == [("a", "1"), ("b", "2"), (SITE, "berlin"), (HOPS, "1")]
    second = Loops("paris", 8).up(first)
    assert second == [("a", "1"), ("b", "2"), (VIA, "paris"), (SITE, "berlin"), (HOPS, "2")]
    again = Loops("paris", 8).up(second)  # a broker of no site has sent it down, and up elsewhere
    assert again == [*second[:-1], (HOPS, "3")]


def test_a_message_that_comes_down_names_where_it_was() -> None:
    """The site of the broker above, once, where that is known, and the one to which it comes."""
    marked = [("a", "1"), (SITE, "berlin"), (HOPS, "1")]
    assert Loops("paris", 8).down(marked) == [*marked, (VIA, "paris")]
    assert Loops("paris", 8).down([]) == [(VIA, "paris")]
    rome = Loops("paris", 8).leads_to("rome")
    assert rome.down([]) == [(SITE, "rome"), (VIA, "paris")]
    assert rome.down(marked) == [*marked, (VIA, "rome"), (VIA, "paris")]
    for named in ([(SITE, "rome")], [*marked, (VIA, "rome")]):
        assert rome.down(named) == [*named, (VIA, "paris")]


def test_a_message_ends_where_it_returns_to_a_site() -> None:
    """Down again at a site where it was, or on its way up once more."""
    loops = Loops("berlin", 8)
    marked = loops.up([])
    told = "it went up first from site berlin, as this one is called"
    assert loops.why_not_down(marked) == loops.why_not_up(marked) == told
    paris = Loops("paris", 8)
    assert paris.why_not_down(marked) == paris.why_not_up(marked) == ""
    came = paris.down(marked)
    assert paris.why_not_down(came) == "it was at site paris before"
    assert paris.why_not_up(came) == ""  # to another cloud


@pytest.mark.parametrize("mark", [SITE, VIA])
def test_a_message_does_not_go_up_to_a_site_where_it_was(mark: str) -> None:
    """The broker there has told its name; one of the same name as this is not told from it."""
    paris = Loops("paris", 8).leads_to("berlin")
    told = "it comes from site berlin, to which this uplink leads"
    assert paris.why_not_up([(mark, "berlin")]) == told
    assert paris.why_not_up([(mark, "rome")]) == ""
    assert Loops("paris", 8).leads_to("paris").peer == ""


def test_a_message_ends_after_too_many_hops() -> None:
    """Whatever its origin, it goes up as often as allowed."""
    marked = [(SITE, "rome")]
    for site in ("berlin", "madrid", "vienna"):
        assert not Loops(site, 3).why_not_up(marked)
        marked = Loops(site, 3).up(marked)
        assert not Loops("paris", 3).why_not_down(marked)
    told = "it went up 3 uplinks; allowed: at most 3"
    assert Loops("paris", 3).why_not_up(marked) == told
    assert Loops("paris", 2).why_not_down(marked) == "it went up 3 uplinks; allowed: at most 2"


@pytest.mark.parametrize(
    ("links", "times"),
    [
        ({"a": "b", "b": "a"}, {"a": 1, "b": 2}),
        ({"a": "b", "b": "c", "c": "a"}, {"a": 1, "b": 2, "c": 2}),
        ({"a": "bc", "b": "ca", "c": "ab"}, {"a": 1, "b": 6, "c": 6}),
        ({"a": "bcd", "b": "acd", "c": "abd", "d": "abc"}, {"a": 1, "b": 26, "c": 26, "d": 26}),
    ],
)
def test_a_message_comes_once_by_each_way_that_passes_no_site_twice(
    links: dict[str, str], times: dict[str, int]
) -> None:
    """Each uplink takes everything up and down; its own site gets a message once."""
    came = dict.fromkeys(links, 0)
    under_way: list[tuple[str, list[tuple[str, str]], tuple[str, str]]] = [("a", [], ("", ""))]
    while under_way:
        at, marks, by = under_way.pop()
        came[at] += 1
        for low, high in ((low, high) for low, highs in links.items() for high in highs):
            loops = Loops(low, 100).leads_to(high)
            if (low, high) == by:  # an uplink is sent nothing that it has brought itself
                continue
            if at == low and not loops.why_not_up(marks):
                under_way.append((high, loops.up(marks), (low, high)))
            elif at == high and not loops.why_not_down(marks):
                under_way.append((low, loops.down(marks), (low, high)))
    assert came == times


@pytest.mark.parametrize("hops", ["", "-1", "1e3", "999999", "²"])
def test_hops_that_are_no_number_count_as_too_many(hops: str) -> None:
    """A message that nobody can count on is not passed on and on."""
    assert Loops("paris", 8).why_not_down([(HOPS, hops)])
    assert Loops("paris", 8).why_not_up([(HOPS, hops)])


def test_a_rule_with_parts_stands_for_the_topics_of_parts() -> None:
    """On both sides, behind the prefix, at QoS 1 at least; other rules stay as they are."""
    whole = DownRule("b", 0, "x/", "y/")
    changed = of_parts([DownRule("a/#", 0, "x/", "y/", parts=True, when="always"), whole], "p")
    assert changed == [DownRule("a/#", 1, "p/x/", "p/y/", parts=True, when="always"), whole]
    remapping = Remapping([], changed)
    assert remapping.down("p/y/a/b") == "p/x/a/b"
    assert remapping.down("y/a/b") is None


def test_who_wants_a_message_wants_its_parts() -> None:
    """A member of a shared subscription does, too."""
    assert in_parts("a/+", "p") == "p/a/+"
    assert in_parts("$share/g/a/#", "p") == "$share/g/p/a/#"


def test_a_lane_has_names_for_the_topics_of_the_other_and_asks_for_its_own() -> None:
    """It may take the other one over."""
    own, other = Rule("a/#"), Rule("b/#", remote_prefix="r/")
    lane = Remapping([own], [], all_up=[own, other], all_down=[DownRule("c")])
    assert lane.up_filters() == {"a/#": 2}
    assert lane.up("b/1") == "r/b/1"
    assert (lane.down("c"), lane.down_rules) == ("c", ())
