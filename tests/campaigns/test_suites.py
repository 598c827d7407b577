from __future__ import annotations

import json
from pathlib import Path

from tests.campaigns.suites.__main__ import compare, main

CONNECT = "bytes.fromhex('101000044d515454040200000004') + b'fake'"
PAHO_TEST = f"""
import socket, sys, unittest

class Test(unittest.TestCase):
    def test_connect(self):
        with socket.create_connection(("127.0.0.1", port), 60) as sock:
            sock.sendall({CONNECT})
            self.assertEqual(sock.recv(4), bytes.fromhex("20020000"))

if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("-p") + 1])
    unittest.main()
"""
MOSQUITTO_HELPER = """
def expect_packet(sock, name, expected):
    raise AssertionError("of CONNACK, properties are not compared")


def start_broker(*args, timeout):
    raise NotImplementedError
"""
MOSQUITTO_TEST = f"""
import os, socket, subprocess, sys
import mosq_test
port = int(sys.argv[1])
program = os.path.join(os.environ["BUILD_ROOT"], "src", "mosquitto")
broker = subprocess.Popen([program, "-v", "-p", str(port)], stdout=subprocess.PIPE)
try:
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), 60)
            break
        except ConnectionRefusedError:
            assert broker.poll() is None
    sock.sendall({CONNECT})
    assert mosq_test.expect_packet(sock, "connack", bytes.fromhex("20020000"))
finally:
    broker.terminate()
    assert broker.wait(60) == 0
"""


def test_tests_of_others_run_against_one_broker_and_three(tmp_path: Path) -> None:
    """Each gets a broker as it starts one, or finds it."""
    paho, broker = (
        tmp_path / "paho" / "interoperability",
        tmp_path / "mosquitto" / "test" / "broker",
    )
    for folder in (paho, broker):
        folder.mkdir(parents=True)
    for name in ("client_test.py", "client_test5.py"):
        (paho / name).write_text(PAHO_TEST)
    (broker.parent / "mosq_test.py").write_text(MOSQUITTO_HELPER)
    (broker / "test.py").write_text("tests = [\n    (1, './01-connect.py'),\n]\n")
    (broker / "01-connect.py").write_text(MOSQUITTO_TEST)
    words = ["--paho", str(paho.parent), "--mosquitto", str(broker.parents[1])]
    assert main([*words, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())["found"]
    for suite, n in (("Paho", 2), ("mosquitto", 1)):
        assert found[suite] == {"tests": n, "pass with one broker": n, "pass with three": n}


def test_what_fails_with_three_brokers_alone_breaks_a_promise() -> None:
    """What fails with one, too, does not."""
    one = {"both": "fails", "three": "", "none": ""}
    findings = compare({"one": one, "cluster": {"both": "fails", "three": "fails", "none": ""}})
    assert [each.value for each in findings[:3]] == [3, 2, 1]
    assert [each.name for each in findings if each.is_met is False] == ["three: fails with three"]
