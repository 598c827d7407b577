"""``penstock client``: what operators do with clients, by real commands on a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from tests.helpers.commands import PENSTOCK
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import Program
from tests.plugins.console.commands.conftest import Operated


def lasting(broker: Any, client_id: str) -> PahoClient:
    """Return a connected client whose session outlives its connection."""
    client = PahoClient(broker.port, client_id)
    properties = connect_properties(SessionExpiryInterval=3_600)
    assert client.connect(clean_start=True, properties=properties)
    return client


def test_who_is_connected_is_listed_and_one_is_shown(operated: Operated) -> None:
    """Address, version and since when; as a table and as the console's JSON."""
    with PahoClient(operated.broker.port, "list/\u202eone") as client:
        assert client.connect()
        table = operated.run("client", "ls", "--search", "list/").rows
        assert table[0][:6] == ["CLIENT", "USER", "ADDRESS", "LISTENER", "MQTT", "SINCE"]
        assert table[1][:5] == ["list/\\u202eone", "-", "127.0.0.1", "default", "5.0"]
        (row,) = operated.run("client", "ls", "--json", "--search", "list/").json["clients"]
        assert (row["client_id"], row["is_connected"]) == ("list/\u202eone", True)
        shown = operated.run("client", "show", "list/\u202eone").out
        assert "from 127.0.0.1, MQTT 5.0, for " in shown
        assert "list/\\u202eone: connected, listener default" in shown
        assert "ago: connected, 127.0.0.1:" in shown
        found = operated.run("client", "show", "list/\u202eone", "--json").json
        assert found["lately"][0]["kind"] == "connected"


def test_a_list_has_as_many_rows_as_are_wanted_in_the_wanted_order(operated: Operated) -> None:
    """The others are told of, and counted."""
    with PahoClient(operated.broker.port, "row1") as one, PahoClient(operated.broker.port) as more:
        assert one.connect()
        assert more.connect()
        assert one.subscribe("rows")
        more.publish("rows", b"x")
        one.message()
        done = operated.run("client", "ls", "-n", "1", "--sort", "delivered")
        assert [row[0] for row in done.rows] == ["CLIENT", "row1"]
        assert done.err.startswith("1 of ")
        assert "--limit" in done.err
        wrong = operated.run("client", "ls", "--sort", "age")
        assert (wrong.status, wrong.out) == (2, "")
        assert "'age'" in wrong.err


def test_a_very_long_name_leaves_the_list_readable(operated: Operated) -> None:
    """A client makes its name up; all of it is in the JSON."""
    with PahoClient(operated.broker.port, "long" + "x" * 60_000) as client:
        assert client.connect()
        done = operated.run("client", "ls", "--search", "longx")
        assert max(map(len, done.out.splitlines())) < 400
        (row,) = operated.run("client", "ls", "--json", "--search", "longx").json["clients"]
        assert len(row["client_id"]) == 60_004


def test_a_name_in_another_encoding_is_nobody(operated: Operated) -> None:
    """A shell passes on any bytes."""
    name = os.fsdecode(b"\xff")
    done = operated.run("client", "show", name)
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert operated.run("client", "ls", "--search", name, "--json").json["clients"] == []


def test_a_client_is_kicked(operated: Operated) -> None:
    """It is told so; a second time there is nobody, which is status 1."""
    with PahoClient(operated.broker.port, "kicked") as client:
        assert client.connect()
        done = operated.run("client", "kick", "kicked", "--reason", "too loud")
        assert (done.status, done.out) == (0, "kicked is disconnected\n")
        assert client.disconnected().value == 0x98
    operated.broker.wait_for_log("too loud")
    done = operated.run("client", "kick", "nobody\x1b")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith('penstock client: client: read "nobody\\u001b"; allowed: ')


def test_a_ban_keeps_a_client_out_until_it_is_lifted(operated: Operated) -> None:
    """By Client Identifier, for a time."""
    with PahoClient(operated.broker.port, "banned") as client:
        assert client.connect()
        done = operated.run("client", "ban", "banned", "--for", "10m", "--reason", "a test")
        assert done.out == "client_id banned is banned for 10 min; disconnected: 1\n"
        client.disconnected()
    assert operated.run("client", "bans").rows[1] == (
        ["client_id", "banned", "10", "min", "ada", "a", "test"]
    )
    (ban,) = operated.run("client", "bans", "--json").json["bans"]
    assert (ban["value"], ban["by"]) == ("banned", "ada")
    with PahoClient(operated.broker.port, "banned") as client:
        assert not client.connect()
        assert client.connack[1].value == 0x8A
    assert operated.run("client", "unban", "banned").status == 0
    with PahoClient(operated.broker.port, "banned") as client:
        assert client.connect()
    assert operated.run("client", "unban", "banned").status == 1
    wrong = operated.run("client", "ban", "banned", "--for", "soon")
    assert wrong.status == 2
    assert wrong.err == (
        "penstock client: --for: read 'soon'; allowed: such as 90s, 10m, 2h or 7d\n"
    )


def test_the_session_of_an_absent_client_is_deleted(operated: Operated) -> None:
    """Not without a yes."""
    with lasting(operated.broker, "absent") as client:
        assert client.subscribe("absent/#", 1)
    assert operated.run("client", "ls", "--search", "absent", "--json").json["total"] == 1
    done = operated.run("client", "rm", "absent")
    assert (done.status, "--yes" in done.err) == (2, True)
    assert operated.run("client", "rm", "absent", "--yes").status == 0
    assert operated.run("client", "ls", "--search", "absent", "--json").json["total"] == 0
    assert operated.run("client", "rm", "absent", "--yes").status == 1


def test_what_is_held_is_released_or_dropped(operated: Operated) -> None:
    """And `why` says that it was held."""
    broker = operated.broker
    with PahoClient(broker.port, "held") as client, PahoClient(broker.port) as publisher:
        assert client.connect()
        assert publisher.connect()
        assert client.subscribe("held/#", 1)
        found = operated.run("why", "held", "--json").json
        while found["link"]["rtt_latest"] is None:
            publisher.publish("held/small", b"x")
            found = operated.run("why", "held", "--json").json
        for command, told in (("release", "messages released: 1\n"), ("drop", "dropped: 1\n")):
            publisher.publish("held/large", bytes(5_000))
            assert "held now" in operated.run("why", "held").out
            yes = ("--yes",) if command == "drop" else ()
            assert operated.run("client", command, "held", *yes).out.endswith(told)


def test_a_client_is_followed(operated: Operated) -> None:
    """Each event is a line, of text or of JSON; other clients are not there."""
    broker = operated.broker
    where = ["--url", broker.console_url, "--token-file", str(operated.folder / "admin.token")]
    with PahoClient(broker.port, "other") as other:
        assert other.connect()
        for option in ((), ("--json",)):
            command = [str(PENSTOCK), "client", "trace", "followed", "-n", "3", *where, *option]
            program = Program(command, stdout=subprocess.PIPE)
            program.wait_for_log("following followed; Ctrl-C ends it")
            with PahoClient(broker.port, "followed") as client:
                assert client.connect()
                other.publish("followed/not", b"x")
                client.publish("followed/\u202etopic", b"12345")
            assert program.process.stdout is not None
            out = program.process.stdout.read()
            assert program.wait() == 0
            lines = out.splitlines()
            if option:
                events = [json.loads(line) for line in lines]
                assert [one["kind"] for one in events] == ["connect", "publish", "disconnect"]
                assert (events[1]["topic"], events[1]["bytes"]) == ("followed/\u202etopic", 5)
            else:
                assert [line.split()[1] for line in lines] == ["connect", "publish", "disconnect"]
                assert "5 B  QoS 1  followed/\\u202etopic" in lines[1]


def test_following_ends_by_an_interrupt(operated: Operated) -> None:
    """Without a traceback, as an operator ends it."""
    where = ["--url", operated.broker.console_url]
    where += ["--token-file", str(operated.folder / "viewer.token")]
    program = Program([str(PENSTOCK), "client", "trace", "nobody", *where])
    program.wait_for_log("following")
    assert program.stop(signal.SIGINT) == 0
    assert "Traceback" not in program.log
