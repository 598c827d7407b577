from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.peers import PEERS, BrokerSetting, Certificate, Options, commanded_peer
from penstock.netem.errors import NetemError
from penstock.netem.runs.broker_process import find_program


def test_commanded_peer_is_told_where_to_listen(tmp_path: Path) -> None:
    """Another broker takes part by its command; its words are its own, port and files ours."""
    peer = commanded_peer("other@2.1=sh -c 'run {port} {\"a\": 1} {key}' {certificate}", PEERS)
    certificate = Certificate(Path("c.pem"), Path("k.pem"), Path("a.pem"))
    command = peer.prepare(tmp_path, BrokerSetting(1884, certificate=certificate))
    assert command == [find_program("sh"), "-c", 'run 1884 {"a": 1} k.pem', "c.pem"]
    assert (peer.name, peer.version()) == ("other", "2.1")
    assert peer.has_tls
    plain = commanded_peer("other=sh {port}", PEERS)
    assert not plain.has_tls
    assert plain.version() == "of unknown version"
    assert not plain.has_production


@pytest.mark.parametrize(("place", "allowed"), [("policy", "access"), ("mosquitto", "acl_file")])
def test_commanded_peer_may_have_the_configuration_of_a_known_one(
    place: str, allowed: str, tmp_path: Path
) -> None:
    """An earlier Penstock, or another mosquitto, takes part in the rows with users as well."""
    peer = commanded_peer(f"other=sh {{{place}}}", PEERS)
    assert peer.has_tls
    assert peer.has_production
    _, file = peer.prepare(tmp_path, BrokerSetting(1884, options=Options(has_acl=True)))
    assert "1884" in Path(file).read_text()
    assert allowed in Path(file).read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sh {port}", "allowed: NAME=PROGRAM"),
        ("a b=sh {port}", "allowed: NAME=PROGRAM"),
        ("other=", "allowed: NAME=PROGRAM"),
        ("other=sh 'x {port}", "No closing quotation"),
        ("other=sh 1883", "nothing says {port}"),
        ("mosquitto=sh {port}", "there is a peer 'mosquitto'"),
        ("other=no-such-broker {port}", "no-such-broker is not installed"),
    ],
)
def test_commanded_peer_that_cannot_be_is_refused(text: str, told: str) -> None:
    """What is wrong with a command is said before anything is measured."""
    with pytest.raises(NetemError, match=re.escape(told)):
        commanded_peer(text, PEERS)
