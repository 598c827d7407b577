from __future__ import annotations

from penstock.netem.links.routes import End, first_ends


def joined(*links: str) -> dict[str, list[End]]:
    """Return the ends of links between hosts of one letter each, named by their number."""
    ends: dict[str, list[End]] = {host: [] for link in links for host in link}
    for number, link in enumerate(links):
        server, client = link[0], link[1]
        ends[server].append(End(f"link{number}", client, f"{number}.2"))
        ends[client].append(End(f"link{number}", server, f"{number}.1"))
    return ends


def ways(start: str, *links: str) -> dict[str, str]:
    """Return host to device."""
    return {host: end.device for host, end in first_ends(start, joined(*links)).items()}


def test_hosts_on_a_line_are_reached_over_those_in_between() -> None:
    """From the end all go by the one link, from the middle by the one of their side."""
    line = ("ab", "bc", "cd")
    assert ways("a", *line) == dict.fromkeys("bcd", "link0")
    assert ways("b", *line) == {"a": "link0", "c": "link1", "d": "link1"}


def test_a_way_is_over_the_fewest_links() -> None:
    """A direct link is taken, however late it was made."""
    assert ways("a", "ab", "bc", "cd", "ad")["d"] == "link3"


def test_of_ways_as_short_the_link_made_first_is_taken() -> None:
    """Between the same two hosts, and round a square."""
    assert ways("a", "ab", "ab") == {"b": "link0"}
    assert ways("a", "ac", "ab", "bd", "cd")["d"] == "link0"


def test_what_no_links_connect_has_no_way() -> None:
    """Neither hosts of another part nor the host itself are in the answer."""
    assert ways("a", "ab", "cd") == {"b": "link0"}
    assert first_ends("a", {"a": []}) == {}
