"""What clients may do counts at the broker where they are, whatever broker a message is from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.plugins.access.password_hash import make_hash
from tests.helpers.cluster import Cluster, running_brokers
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import ANONYMOUS

USERS = {"reader": "reads", "writer": "writes"}
ACL = """\
user reader
topic read #
topic deny secret/#

user writer
topic readwrite #
topic deny forbidden/#
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with users and an ACL file."""
    folder = tmp_path_factory.mktemp("cluster")
    lines = [
        f"{user}:{make_hash(password.encode(), b'twelve bytes', 1_000)}\n"
        for user, password in USERS.items()
    ]
    (folder / "passwords").write_text("".join(lines))
    (folder / "acl").write_text(ACL)
    for name in ("passwords", "acl"):
        (folder / name).chmod(0o600)
    access = {"password_file": str(folder / "passwords"), "acl_file": str(folder / "acl")}
    plugins = {"access": access, ANONYMOUS: {"allow_anonymous": False}}
    with running_brokers(folder, "a", "b", plugins=plugins) as brokers:
        yield brokers


def logged_in(cluster: Cluster, name: str, user: str) -> PahoClient:
    """Return a client of a broker."""
    client = PahoClient(cluster[name].port)
    assert client.connect(user, USERS[user])
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscriber_gets_no_more_than_it_may_read(cluster: Cluster, qos: int) -> None:
    """A wildcard does not open what is denied, though it comes from another broker."""
    with logged_in(cluster, "b", "reader") as reader, logged_in(cluster, "a", "writer") as writer:
        assert reader.subscribe("#", 2)
        for number in range(5):
            writer.publish("secret/plan", b"%d" % number, qos)
        writer.publish("open/plan", b"last", qos)
        message = reader.message()
        assert (message.topic, bytes(message.payload)) == ("open/plan", b"last")


def test_a_member_of_a_group_gets_no_more_than_it_may_read(cluster: Cluster) -> None:
    """A shared subscription is no way round it either."""
    with logged_in(cluster, "b", "reader") as reader, logged_in(cluster, "a", "writer") as writer:
        assert reader.subscribe("$share/crew/#", 1)
        writer.publish("secret/plan", b"1", 1)
        writer.publish("open/plan", b"last", 1)
        message = reader.message()
        assert (message.topic, bytes(message.payload)) == ("open/plan", b"last")


def test_what_waits_in_a_mailbox_is_for_who_may_read_it(cluster: Cluster) -> None:
    """Also for a member of a group; at the broker where the client comes back."""
    lasting: dict[str, Any] = {
        "clean_start": False,
        "properties": connect_properties(SessionExpiryInterval=600),
    }
    user = ("reader", USERS["reader"])
    with PahoClient(cluster["b"].port, "away") as reader:
        assert reader.connect(*user, **lasting)
        assert reader.subscribe("+/kept/#", 1)
        assert reader.subscribe("$share/crew/+/kept/#", 1)
    with logged_in(cluster, "a", "writer") as writer:
        writer.publish("secret/kept/plan", b"1", 1)
        writer.publish("open/kept/plan", b"2", 1)
    with PahoClient(cluster["a"].port, "away") as reader:
        assert reader.connect(*user, **lasting)
        assert reader.connack[0]
        assert reader.payloads(2) == [b"2", b"2"]


def test_what_is_retained_by_another_broker_is_for_who_may_read_it(cluster: Cluster) -> None:
    """The subscriber comes later."""
    with logged_in(cluster, "a", "writer") as writer:
        writer.publish("secret/kept", b"1", 1, retain=True)
        writer.publish("open/kept", b"2", 1, retain=True)
    with logged_in(cluster, "b", "reader") as reader:
        assert reader.subscribe("+/kept", 1)
        assert reader.message().topic == "open/kept"


def test_a_publisher_that_may_not_publish_reaches_nobody(cluster: Cluster) -> None:
    """The message does not leave its broker."""
    with logged_in(cluster, "b", "writer") as reader, logged_in(cluster, "a", "writer") as writer:
        assert reader.subscribe("#", 1)
        sent = writer.paho.publish("forbidden/x", b"1", 0)
        sent.wait_for_publish(10)
        writer.publish("open/x", b"2", 1)
        while (message := reader.message()).topic.endswith("/kept"):
            pass
        assert message.topic == "open/x"
