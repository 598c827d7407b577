"""``penstock topic``, ``subscription`` and ``retained``, on a real broker."""

from __future__ import annotations

from tests.helpers.paho_client import PahoClient, connect_properties
from tests.plugins.console.commands.conftest import Operated


def test_what_fills_queues_is_listed_by_topic(operated: Operated) -> None:
    """Most bytes first."""
    port = operated.broker.port
    with PahoClient(port, "away") as client:
        properties = connect_properties(SessionExpiryInterval=3_600)
        assert client.connect(clean_start=True, properties=properties)
        assert client.subscribe("fill/#", 1)
    with PahoClient(port) as publisher:
        assert publisher.connect()
        publisher.publish("fill/a", b"x" * 10)
        publisher.publish("fill/b", b"x" * 20)
        publisher.publish("fill/b", b"x" * 20)
    rows = operated.run("topic", "ls", "--search", "fill/").rows
    assert rows[0] == ["TOPIC", "CLASS", "MESSAGES", "BYTES", "OLDEST"]
    assert [row[:5] for row in rows[1:]] == [
        ["fill/b", "small", "2", "40", "B"],
        ["fill/a", "small", "1", "10", "B"],
    ]
    found = operated.run("topic", "ls", "--search", "fill/", "--json").json["topics"]
    assert [(one["topic"], one["bytes"]) for one in found] == [("fill/b", 40), ("fill/a", 10)]


def test_all_subscriptions_are_listed(operated: Operated) -> None:
    """Of everybody, of one client, or with one filter."""
    with PahoClient(operated.broker.port, "reader") as client:
        assert client.connect()
        assert client.subscribe("sub/+", 1)
        assert client.subscribe("$share/all/sub/#", 2)
        rows = operated.run("subscription", "ls", "--client", "reader").rows
        assert rows[0] == ["CLIENT", "FILTER", "QOS", "SHARE", "SIZES"]
        assert sorted(rows[1:]) == [
            ["reader", "sub/#", "2", "all", "-"],
            ["reader", "sub/+", "1", "-", "-"],
        ]
        (found,) = operated.run("subscription", "ls", "--filter", "sub/+", "--json").json[
            "subscriptions"
        ]
        assert found["client_id"] == "reader"


def test_a_retained_message_is_found_read_and_cleared(operated: Operated) -> None:
    """With its payload; what a terminal would obey is escaped."""
    with PahoClient(operated.broker.port, "keeper") as client:
        assert client.connect()
        client.publish("kept/a", b"21.5\n\x1b[2J", retain=True)
        client.publish("kept/b", b"\xff\x00", retain=True)
    rows = operated.run("retained", "ls", "kept/#").rows
    assert [row[0] for row in rows] == ["TOPIC", "kept/a", "kept/b"]
    assert "keeper" in rows[1]
    shown = operated.run("retained", "show", "kept/a").out
    assert shown.endswith("\n21.5\n\\x1b[2J\n")
    assert "payload in base64: /wA=" in operated.run("retained", "show", "kept/b").out
    found = operated.run("retained", "show", "kept/b", "--json").json
    assert (found["bytes"], found["text"]) == (2, None)
    assert operated.run("retained", "rm", "kept/a").status == 2
    done = operated.run("retained", "rm", "kept/a", "kept/b", "--yes")
    assert done.out == "kept/a is cleared\nkept/b is cleared\n"
    assert operated.run("retained", "ls", "kept/#", "--json").json["total"] == 0
    done = operated.run("retained", "show", "kept/a")
    assert (done.status, done.out) == (1, "")
    assert 'penstock retained: topic: read "kept/a"' in done.err
