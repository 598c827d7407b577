from __future__ import annotations

from penstock.broker.errors import (
    ConfigError,
    ConfigProblem,
    MalformedPacketError,
    PeerError,
    PenstockError,
    ProtocolError,
)
from penstock.broker.mqtt.reason_codes import ReasonCode


def test_a_peers_error_names_its_reason_code_and_the_detail() -> None:
    """E2: fixed text first, detail after."""
    assert str(MalformedPacketError("no end")) == "malformed packet (0x81): no end"
    error = ProtocolError("too many", ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    assert str(error) == "receive maximum exceeded (0x93): too many"
    assert ProtocolError("x").reason_code == ReasonCode.PROTOCOL_ERROR


def test_a_config_error_has_a_line_for_each_problem() -> None:
    """File, path, what was read, what is allowed."""
    problems = [ConfigProblem("a.b", "-1", "0 or more"), ConfigProblem("c", "'x'", "a number")]
    error = ConfigError("policy.yaml", problems)
    assert str(error).splitlines() == [
        "policy.yaml: a.b: read -1; allowed: 0 or more",
        "policy.yaml: c: read 'x'; allowed: a number",
    ]


def test_every_error_of_ours_has_one_root_and_peers_are_apart() -> None:
    """E1: a caller can tell our faults from a peer's."""
    assert issubclass(PeerError, PenstockError)
    assert issubclass(ConfigError, PenstockError)
    assert not issubclass(ConfigError, PeerError)
