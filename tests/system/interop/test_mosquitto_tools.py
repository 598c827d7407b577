"""What mosquitto's tools ask of a broker beside publishing and subscribing."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.helpers.cluster import Service
from tests.helpers.paho_client import PahoClient, publish_properties
from tests.helpers.process import SECONDS
from tests.system.interop.cases import fresh, until


def run(broker: Service, program: str, *options: str) -> str:
    """Run one of mosquitto's tools to its end; return what it prints."""
    command = [program, "-h", "127.0.0.1", "-p", str(broker.port), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout


@pytest.mark.parametrize("version", ["311", "5"])
def test_request_and_response(broker: Service, version: str) -> None:
    """mosquitto_rr asks and gets its answer; with MQTT 5.0 the question says where to."""
    topic = fresh("rr")
    command = ["mosquitto_rr", "-h", "127.0.0.1", "-p", str(broker.port), "-V", version]
    command += ["-t", topic, "-e", f"{topic}/answer", "-m", "question", "-q", "1"]
    with PahoClient(broker.port) as responder:
        assert responder.connect()
        assert responder.subscribe(topic, 1)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            try:
                question: Any = responder.message()
                assert question.payload == b"question"
                to, back = f"{topic}/answer", None
                if version == "5":
                    to = question.properties.ResponseTopic
                    data = getattr(question.properties, "CorrelationData", None)
                    back = publish_properties(**({"CorrelationData": data} if data else {}))
                responder.publish(to, b"answer", properties=back)
                assert asking.stdout is not None
                assert asking.stdout.readline() == "answer\n"
            finally:
                asking.kill()


@pytest.mark.parametrize("version", ["31", "311", "5"])
def test_retained_messages_are_listed_and_removed(broker: Service, version: str) -> None:
    """mosquitto_sub prints what is retained; then it removes each message as it sees it."""
    base = fresh("listed")
    expected = [f"{base}/{name} 1 {name}" for name in "abc"]
    options = ("-V", version, "-t", f"{base}/#", "--retained-only", "-F", "%t %r %p")
    with PahoClient(broker.port) as client:
        assert client.connect()
        for name in "abc":
            client.publish(f"{base}/{name}", name.encode(), retain=True)
        came = run(broker, "mosquitto_sub", *options, "-C", "3")
        assert sorted(came.splitlines()) == expected
        assert client.subscribe(f"{base}/#", 1)
        assert sorted(client.payloads(3)) == [b"a", b"b", b"c"]
        command = ["mosquitto_sub", "-p", str(broker.port), *options, "--remove-retained"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as removing:
            try:
                assert client.payloads(3) == [b"", b"", b""]
                assert removing.stdout is not None
                lines = [removing.stdout.readline().rstrip("\n") for _ in expected]
                assert sorted(lines) == expected
            finally:
                removing.kill()
        assert client.subscribe(f"{base}/#", 1)
        client.publish(f"{base}/a", b"end")
        assert not until(client, b"end")


def test_subscriptions_of_a_session_are_given_up(broker: Service) -> None:
    """mosquitto_sub unsubscribes for a session that stays, which then gets nothing more."""
    topic = fresh("given up")
    session = ("-i", topic, "-c", "-q", "1", "-E")
    run(broker, "mosquitto_sub", *session, "-t", topic, "-t", f"{topic}/kept")
    run(broker, "mosquitto_sub", *session, "-t", f"{topic}/kept", "-U", topic)
    for name in (topic, f"{topic}/kept"):
        run(broker, "mosquitto_pub", "-t", name, "-m", name, "-q", "1")
    came = run(broker, "mosquitto_sub", "-i", topic, "-c", "-t", "none", "-C", "1", "-v")
    assert came == f"{topic}/kept {topic}/kept\n"
