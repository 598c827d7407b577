"""``penstock pub`` and ``penstock sub``: real commands on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.certificates import Authority
from tests.helpers.commands import PENSTOCK, penstock
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import BrokerProcess, Program, anonymous_policy, running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, each with topics of its own."""
    with running_broker(anonymous_policy(), tmp_path_factory.mktemp("broker")) as running:
        yield running


def url(broker: BrokerProcess) -> str:
    """Return the address of a broker."""
    return f"mqtt://127.0.0.1:{broker.port}"


class Reader:
    """``penstock sub`` beside the test."""

    def __init__(self, broker: BrokerProcess, *arguments: str) -> None:
        command = [str(PENSTOCK), "sub", *arguments, "--url", url(broker)]
        self._program = Program(command, stdout=subprocess.PIPE)
        self._program.wait_for_log("subscribed; Ctrl-C ends it")

    def lines(self) -> list[str]:
        """Wait for its end; return what it has printed."""
        assert self._program.process.stdout is not None
        found = self._program.process.stdout.read().splitlines()
        assert self._program.wait() == 0, self._program.log
        return found

    def json(self) -> list[dict[str, Any]]:
        """Return the same, which is JSON."""
        return [json.loads(line) for line in self.lines()]

    def interrupt(self) -> int:
        """End it as Ctrl-C does; return its status."""
        return self._program.stop(signal.SIGINT)


def test_messages_are_shown_with_latency_size_and_topic(broker: BrokerProcess) -> None:
    """What a terminal would obey is escaped."""
    reader = Reader(broker, "shown/#", "-q", "1", "-n", "2")
    assert penstock("pub", "shown/a", "21.5 \x1b[2J", "-q", "1", "--url", url(broker)).status == 0
    with PahoClient(broker.port) as client:
        assert client.connect()
        client.publish("shown/b", b"\xff\x00")
    first, second = (line.split() for line in reader.lines())
    assert first[2] in ("ms", "s", "min")
    assert first[3:] == ["9", "B", "QoS", "1", "shown/a", "21.5", "\\x1b[2J"]
    # Others say not when they published.
    assert second[1:] == ["-", "2", "B", "QoS", "1", "shown/b", "base64", "/wA="]


def test_json_has_latency_properties_and_payload(broker: BrokerProcess) -> None:
    """One line a message, as programs read it; what is published has its line, too."""
    reader = Reader(broker, "json/#", "--json", "-n", "1")
    options = ["--content-type", "text/plain", "--expiry", "60", "--user-property", "unit=C"]
    done = penstock("pub", "json/a", "21.5", "-q", "1", "--json", *options, "--url", url(broker))
    assert (done.json["topic"], done.json["bytes"]) == ("json/a", 4)
    assert done.json["acknowledged_seconds"] >= 0
    (seen,) = reader.json()
    assert (seen["topic"], seen["text"], seen["qos"], seen["retain"]) == (
        "json/a",
        "21.5",
        0,
        False,
    )
    assert isinstance(seen["latency_seconds"], float)
    properties = seen["properties"]
    assert (properties["content_type"], properties["message_expiry_interval"]) == ("text/plain", 60)
    assert properties["user_property"][0] == ["unit", "C"]


def test_lines_and_files_are_published(broker: BrokerProcess, tmp_path: Path) -> None:
    """Each line of standard input is a message; a file is one, or standard input as a whole."""
    reader = Reader(broker, "lines", "-q", "2", "-n", "5", "--json")
    where = ("--url", url(broker), "-q", "2")
    assert len(penstock("pub", "lines", *where, stdin=b"one\ntwo\n").rows) == 2
    assert penstock("pub", "lines", "--file", "-", *where, stdin=b"one\ntwo\n").status == 0
    (tmp_path / "picture").write_bytes(b"\xff" * 10)
    done = penstock("pub", "lines", "-f", str(tmp_path / "picture"), "-n", "2", *where)
    assert done.status == 0
    seen = reader.json()
    assert [one.get("text") for one in seen[:3]] == ["one", "two", "one\ntwo\n"]
    assert [one["bytes"] for one in seen[3:]] == [10, 10]
    done = penstock("pub", "lines", "--file", str(tmp_path / "none"), *where)
    assert (done.status, "none: No such file" in done.err) == (2, True)


def test_a_large_message_has_a_lane_of_its_own(broker: BrokerProcess, tmp_path: Path) -> None:
    """With --lanes, both ways."""
    reader = Reader(broker, "lane/#", "-q", "1", "-n", "2", "--lanes", "--json")
    (tmp_path / "picture").write_bytes(bytes(50_000))
    where = ("--url", url(broker), "-q", "1", "--lanes")
    assert penstock("pub", "lane/small", "x", *where).status == 0
    assert penstock("pub", "lane/large", "-f", str(tmp_path / "picture"), *where).status == 0
    lanes = {one["topic"]: one["lane"] for one in reader.json()}
    assert lanes["lane/small"] == "small"
    assert set(lanes) == {"lane/small", "lane/large"}
    done = penstock("sub", "x", "--lanes", "--mqtt", "3.1.1", "--url", url(broker))
    assert done.err == "penstock sub: --lanes: read --mqtt 3.1.1; allowed: --mqtt 5\n"


def test_retained_messages_are_published_shown_left_out_and_cleared(broker: BrokerProcess) -> None:
    """Their age is no latency."""
    where = ("--url", url(broker), "-q", "1")
    assert penstock("pub", "kept", "old", "--retain", *where).status == 0
    done = penstock("sub", "kept", "-n", "1", "--json", "--url", url(broker))
    assert (done.json["retain"], done.json["latency_seconds"]) == (True, None)
    reader = Reader(broker, "kept", "-n", "1", "--json", "--no-retained")
    assert penstock("pub", "kept", "", "--retain", *where).status == 0
    (seen,) = reader.json()
    assert (seen["bytes"], seen["retain"]) == (0, False)


def test_mqtt_3_1_1_is_spoken_and_an_interrupt_ends_it(broker: BrokerProcess) -> None:
    """Without properties there is no latency; the end is an orderly one."""
    reader = Reader(broker, "three", "--mqtt", "3.1.1", "-n", "1", "--json")
    assert penstock("pub", "three", "x", "--mqtt", "3.1.1", "--url", url(broker)).status == 0
    assert reader.json()[0]["latency_seconds"] is None
    assert Reader(broker, "three").interrupt() == 0


def test_passwords_and_tls(tmp_path: Path) -> None:
    """A wrong password, an unknown authority and a denied topic are told, each in one line."""
    authority = Authority(tmp_path)
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "wrong").write_text("other\n")
    passwords = tmp_path / "passwords"
    assert penstock("passwd", str(passwords), "joe", stdin=b"secret\n").status == 0
    (tmp_path / "topics").write_text("user joe\ntopic readwrite joe/#\n")
    policy = {
        "listeners": {"default": {"bind": "127.0.0.1:0", **authority.listener_keys()}},
        "plugins": {"access": {"password_file": str(passwords), "acl_file": "topics"}},
    }
    with running_broker(policy, tmp_path) as broker:
        address = ("--url", f"mqtts://localhost:{broker.port}")
        trusted = (*address, "--ca-file", authority.cafile, "--username", "joe")
        joe = (*trusted, "--password-file", str(tmp_path / "password"))
        assert penstock("pub", "joe/a", "x", "-q", "1", *joe).status == 0
        done = penstock("pub", "ada/a", "x", "-q", "1", *joe)
        assert (done.status, done.err) == (1, "penstock pub: ada/a: refused: Not authorized\n")
        for arguments, told in (
            ((*trusted, "--password-file", str(tmp_path / "wrong")), "refused: "),
            (address, "certificate verify failed"),
            ((*address, "--ca-file", str(tmp_path / "none")), "--ca-file"),
        ):
            for command in (("sub", "joe/#"), ("pub", "joe/a", "x")):
                done = penstock(*command, *arguments)
                assert (done.status, done.out) == (2, "")
                assert told in done.err
                assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sub", "a/#/b"], "FILTER: read 'a/#/b': "),
        (["pub", "a/+", "x"], "TOPIC: read 'a/+': "),
        (["pub", "a", "x", "--file", "y"], "MESSAGE: read MESSAGE and --file; allowed: one"),
        (["pub", "a", "x", "--user-property", "y"], "--user-property: read 'y'; allowed: NAME="),
        (["pub", "a", "x", "--mqtt", "3.1.1", "--expiry", "1"], "MessageExpiryInterval and --mqtt"),
        (["sub", "a", "--mqtt", "3.1.1", "--no-retained"], "--no-retained: read --mqtt 3.1.1"),
        (["sub", "a", "--url", "127.0.0.1"], "--url: read '127.0.0.1'; allowed: mqtt://HOST:PORT"),
    ],
)
def test_wrong_arguments_are_told(broker: BrokerProcess, arguments: list[str], told: str) -> None:
    """What was read and what is allowed, in one line; status 2."""
    done = penstock(*arguments, *(() if "--url" in arguments else ("--url", url(broker))))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"penstock {arguments[0]}: ")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_refused_subscription_is_told(broker: BrokerProcess) -> None:
    """With the broker's reason code; status 2."""
    wrong = ("--user-property", "penstock-size=huge")
    done = penstock("sub", "refused", *wrong, "--url", url(broker))
    told = f"penstock sub: {url(broker)}: topic filter refused: refused: "
    assert (done.status, done.out, done.err.startswith(told)) == (2, "", True)


def test_a_broker_that_is_not_there_is_told() -> None:
    """In one line; status 2."""
    with reserved_port() as port:
        for command in (("sub", "a"), ("pub", "a", "x")):
            done = penstock(*command, "--url", f"mqtt://127.0.0.1:{port}")
            assert (done.status, done.err) == (
                2,
                f"penstock {command[0]}: mqtt://127.0.0.1:{port}: no answer (Connection refused)\n",
            )


def test_without_the_extra_it_is_named() -> None:
    """With how to install it."""
    code = (
        "import sys; sys.modules['paho'] = None\n"
        "from penstock import __main__ as command_line\n"
        "sys.exit(command_line.main(['sub', 'a']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = "penstock sub: needs the module paho: pip install 'penstock-mqtt[lanes]'\n"
    assert (done.returncode, done.stderr) == (2, told)
