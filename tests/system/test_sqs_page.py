"""docs/how-to/sqs.md: its policy and its examples, with a broker, a device and boto3 as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boto3
import pytest
import trustme
import yaml

from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "sqs.md"

BLOCK = re.compile(r"^```(yaml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language."""
    return [text for found, text in BLOCK.findall(PAGE.read_text()) if found == language]


def page_policy(bind: str, **keys: Any) -> dict[str, Any]:
    """Return the policy of the page, with an address and other keys."""
    (policy,) = blocks("yaml")
    section = yaml.safe_load(policy)["plugins"]["queue"]
    return anonymous_policy({"queue": {**section, "http": None, "sqs": bind, **keys}})


def sqs_url(broker: BrokerProcess) -> str:
    """Return where the API listens."""
    return broker.wait_for_match(r"Amazon SQS listens on (\S+)")[1]


def publish(broker: BrokerProcess, topic: str, payload: bytes) -> None:
    """Publish as a device does; return when the message is stored."""
    with PahoClient(broker.port, "device-7") as device:
        assert device.connect()
        device.paho.publish(topic, payload, qos=1).wait_for_publish(SECONDS)


def client_of(url: str, secret: str | None = None, **options: Any) -> Any:
    """Return boto3's client."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="importer",
        aws_secret_access_key=secret or "any",
        **options,
    )


def test_examples_of_the_page_do_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is copied from the page works, in the order of the page."""
    with reserved_port() as port:
        bind = f"127.0.0.1:{port}"
        with running_broker(page_policy(bind), tmp_path) as broker:
            sqs_url(broker)
            publish(broker, "plant/7", b"21.5")
            names: dict[str, Any] = {}
            for body in blocks("python"):
                code = body.replace("127.0.0.1:9324", bind)
                exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 (the page's own)
    assert capsys.readouterr().out == "plant/7 21.5\nfirst open\n"


def test_queues_and_messages_outlive_a_killed_broker(tmp_path: Path) -> None:
    """With their ids and attributes; what was received and not deleted can be received again."""
    with running_broker(page_policy("127.0.0.1:0"), tmp_path) as broker:
        sqs = client_of(sqs_url(broker))
        policy = {"VisibilityTimeout": "5", "MaximumMessageSize": "2048"}
        url = sqs.create_queue(QueueName="made", Attributes=policy, tags={"team": "a"})["QueueUrl"]
        sent = sqs.send_message(
            QueueUrl=url,
            MessageBody="a",
            MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}},
        )
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, VisibilityTimeout=3600)
        broker.kill()
    with running_broker(page_policy("127.0.0.1:0"), tmp_path) as broker:
        sqs = client_of(sqs_url(broker))
        url = sqs.get_queue_url(QueueName="made")["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert policy.items() <= found.items()
        assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a"}
        (message,) = sqs.receive_message(
            QueueUrl=url, WaitTimeSeconds=20, MessageAttributeNames=["All"]
        )["Messages"]
        assert message["MessageId"] == sent["MessageId"]
        assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        assert broker.stop() == 0


def test_access_keys_and_tls_serve_other_machines(tmp_path: Path) -> None:
    """The secret is in a file; without it, the server gives nothing away."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "importer.secret").write_text("a-secret-of-the-importer\n")
    (tmp_path / "tokens.yaml").write_text(
        "tokens: [{name: importer, secret_file: importer.secret, roles: {telemetry: [read]}}]\n"
    )
    tls = {"certificate": "server.pem", "key": "server.pem"}
    policy = page_policy("127.0.0.1:0", tokens="tokens.yaml", http_tls=tls)
    with running_broker(policy, tmp_path) as broker:
        url = sqs_url(broker)
        assert url.startswith("https://")
        publish(broker, "plant/7", b"21.5")
        sqs = client_of(url, "a-secret-of-the-importer", verify=str(tmp_path / "ca.pem"))
        queue = sqs.get_queue_url(QueueName="telemetry")["QueueUrl"]
        assert queue.startswith("https://")
        (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
        assert message["Body"] == "21.5"
        wrong = client_of(url, "another", verify=str(tmp_path / "ca.pem"))
        with pytest.raises(wrong.exceptions.ClientError, match="SignatureDoesNotMatch"):
            wrong.list_queues()
