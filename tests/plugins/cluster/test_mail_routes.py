"""Whose mailboxes get a message."""

from __future__ import annotations

from penstock.plugins.cluster.mail_routes import Mailbox, MailRoutes


class Told:
    """Routes, and what they have told.

    Attributes:
        filters: those that some mailbox has.
        shares: members of shared subscriptions: share and client.
    """

    def __init__(self) -> None:
        self.filters: set[str] = set()
        self.shares: set[tuple[str, str]] = set()
        self.routes = MailRoutes(lambda client_id: client_id[:1], self._filter, self._share)

    def _filter(self, topic_filter: str, is_there: bool) -> None:  # noqa: FBT001
        assert is_there == (topic_filter not in self.filters)
        (self.filters.add if is_there else self.filters.remove)(topic_filter)

    def _share(self, share: str, box: Mailbox, is_there: bool) -> None:  # noqa: FBT001
        (self.shares.add if is_there else self.shares.remove)((share, box.client_id))

    def of(self, topic: str) -> list[str]:
        """Return the clients whose mailboxes get a topic's messages."""
        return [client_id for clients in self.routes.of(topic).values() for client_id in clients]


def test_each_mailbox_gets_a_message_once() -> None:
    """However many of its filters match; topics that were asked for before follow changes."""
    told = Told()
    told.routes.set("x", "a/+", "o")
    assert told.of("a/b") == ["x"]
    told.routes.set("x", "a/#", "o")
    told.routes.set("y", "a/b", "o")
    assert sorted(told.of("a/b")) == ["x", "y"]
    assert told.of("b") == []
    assert told.filters == {"a/+", "a/#", "a/b"}
    told.routes.set("x", "a/+", "-o")
    told.routes.set("y", "a/b", "-o")
    assert told.of("a/b") == ["x"]
    assert told.filters == {"a/#"}
    assert list(told.routes.boxes) == ["x"]


def test_end_of_an_earlier_session_leaves_the_next_one_alone() -> None:
    """It is told late, where its node has died; the origin tells them apart."""
    told = Told()
    told.routes.set("x", "a", "o1")
    told.routes.set("x", "a", "o2")
    told.routes.set("x", "a", "-o1")
    assert told.of("a") == ["x"]
    told.routes.set("x", "a", "-o2")
    assert told.of("a") == []


def test_node_knows_best_about_sessions_that_it_has() -> None:
    """What others have told of them comes late."""
    told = Told()
    told.routes.own = ["x"]
    told.routes.set("x", "a", "o")
    told.routes.changed("\0x\0a", "-o")
    told.routes.changed("\0y\0b/c", "o")
    list(told.routes.replaced([("y\0d", "o"), ("x\0e", "o")]))
    assert (told.of("a"), told.of("b/c"), told.of("d"), told.of("e")) == (["x"], [], ["y"], [])


def test_shared_subscriptions_have_members() -> None:
    """They are no filters of the tree."""
    told = Told()
    told.routes.set("x", "$share/g/a", "o")
    assert told.shares == {("$share/g/a", "x")}
    assert told.of("a") == []
    told.routes.set("x", "$share/g/a", "-o")
    assert told.shares == set()


def test_very_many_sessions_are_taken_in_slices() -> None:
    """Others have their turn between them."""
    told = Told()
    told.routes.set("gone", "a", "o")
    found = [(f"{number}\0a", "o") for number in range(1000)]
    assert 4 <= len(list(told.routes.replaced(found))) <= 6
    assert len(told.of("a")) == 1000
