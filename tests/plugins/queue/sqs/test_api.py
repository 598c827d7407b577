from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import boto3
import botocore.loaders
import botocore.session
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from penstock.broker.message import Message
from penstock.plugins.queue.access import QueueAccess
from penstock.plugins.queue.engines.contract import NewMessage, StorageError, StorageFullError
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.store import Changes
from penstock.plugins.queue.sqs import api
from penstock.plugins.queue.sqs.signature import ALLOWED_SKEW_SECONDS
from tests.plugins.queue.running import until
from tests.plugins.queue.sqs.running import RunningSqs, running_sqs
from tests.plugins.queue.sqs.script import REGION, Transcript, new_client, run

SECRET = "a-secret-of-the-importer"
READER_SECRET = "a-secret-of-the-dashboard"

ROW: Final = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def told_differences() -> dict[str, tuple[str, str]]:
    """Return the table of moto.md: our outcome and that of moto, by step."""
    table = Path(__file__).with_name("moto.md").read_text()
    _, *rows = ROW.findall(table)
    return {step: (ours, motos) for step, ours, motos in rows}


def in_brief(outcome: Any) -> str:
    """Return an outcome as the table has it."""
    return outcome if isinstance(outcome, str) else "done"


@pytest.fixture(scope="module")
def motos() -> Iterator[Transcript]:
    """Run the script against moto."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield run(new_client(f"http://{host}:{port}"))
    finally:
        server.stop()


@pytest.fixture
def access(tmp_path: Path) -> QueueAccess:
    """Return callers: one with all roles, one who reads `q` only."""
    (tmp_path / "importer.secret").write_text(SECRET)
    (tmp_path / "reader.secret").write_text(READER_SECRET)
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        "tokens:\n"
        "- {name: importer, secret_file: importer.secret, access_key_id: AKIA,"
        ' roles: {"*": [read, write, admin]}}\n'
        "- {name: reader, secret_file: reader.secret, roles: {q: [read]}}\n"
    )
    return QueueAccess.load(str(tokens))


async def in_thread(call: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call something that blocks, such as boto3."""
    return await asyncio.to_thread(call, *positional, **named)


async def test_the_script_comes_to_what_it_comes_to_with_moto(
    motos: Transcript, access: QueueAccess
) -> None:
    """Apart from the steps that moto.md lists, with a reason for each."""
    async with running_sqs(access=access) as server:
        ours = await in_thread(run, new_client(server.url, "AKIA", SECRET))
    assert set(ours) == set(motos)
    differing = {
        name: (in_brief(ours[name]), in_brief(motos[name]))
        for name in ours
        if ours[name] != motos[name]
    }
    assert differing == told_differences()


async def test_messages_whose_answer_is_not_written_are_there_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The receive does not count; so it is where the receiver leaves meanwhile."""
    async with running_sqs({"q": {}}) as server:
        client = new_client(server.url)
        url = f"{server.url}/000000000000/q"
        await in_thread(client.send_message, QueueUrl=url, MessageBody="a")
        with monkeypatch.context() as patched:
            patched.setattr(api, "write_json_answer", failing)
            with pytest.raises(ClientError, match="the server failed"):
                await in_thread(client.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        answer = await in_thread(
            client.receive_message,
            QueueUrl=url,
            WaitTimeSeconds=20,
            AttributeNames=["ApproximateReceiveCount"],
        )
        (received,) = answer["Messages"]
        assert received["Attributes"] == {"ApproximateReceiveCount": "1"}


def failing(_: object) -> Generator[None, None, bytes]:
    """End as a work that has failed."""
    yield
    raise RuntimeError("odd")


def filled(outcome: Any) -> Any:
    """Return an outcome without what is empty: XML cannot tell it from what is not there."""
    if not isinstance(outcome, dict):
        return outcome
    return {name: value for name, value in outcome.items() if value not in ({}, [])}


def query_client(url: str) -> Any:
    """Return a client of botocore that speaks the query protocol, as older ones do.

    It has the operations of today, with the names that they have in that protocol.
    """
    model = json.loads(
        gzip.decompress(
            next(
                Path(folder, "sqs/2012-11-05/service-2.json.gz").read_bytes()
                for folder in botocore.loaders.Loader().search_paths
                if Path(folder, "sqs/2012-11-05/service-2.json.gz").exists()
            )
        )
    )
    metadata = model["metadata"]
    metadata["protocol"], metadata["protocols"] = "query", ["query"]
    metadata["xmlNamespace"] = "http://queue.amazonaws.com/doc/2012-11-05/"
    for name in ("jsonVersion", "targetPrefix", "awsQueryCompatible"):
        metadata.pop(name, None)
    shapes = model["shapes"]
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for shape in shapes.values():
        if shape["type"] == "list" and "flattened" in shape:
            shape["member"]["locationName"] = shape["member"]["shape"]
        elif shape["type"] == "map":
            is_tag = shape["key"]["shape"] == "TagKey"
            shape["key"]["locationName"] = "Key" if is_tag else "Name"
            shape["value"]["locationName"] = "Value"
        for member_name, member in shape.get("members", {}).items():
            if member_name in _MEMBERS:
                member["locationName"] = _MEMBERS[member_name]
    shapes["AttributeNameList"]["member"]["locationName"] = "AttributeName"
    shapes["MessageSystemAttributeList"]["member"]["locationName"] = "MessageSystemAttributeName"
    shapes["QueueUrlList"]["member"]["locationName"] = "QueueUrl"
    session = botocore.session.get_session()
    loader = session.get_component("data_loader")
    plain = loader.load_service_model

    def load(service: str, type_name: str, api_version: str | None = None) -> Any:
        is_model = (service, type_name) == ("sqs", "service-2")
        return model if is_model else plain(service, type_name, api_version)

    loader.load_service_model = load
    return boto3.Session(botocore_session=session).client(
        "sqs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="AKIA",
        aws_secret_access_key=SECRET,
        config=boto3.session.Config(retries={"total_max_attempts": 1}),
    )


_MEMBERS: Final = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}


async def test_both_protocols_come_to_the_same(access: QueueAccess) -> None:
    """The whole script, with the protocol of older SDKs."""
    async with running_sqs() as server:
        json_outcome = await in_thread(run, new_client(server.url))
    async with running_sqs(access=access) as server:
        query_outcome = await in_thread(run, query_client(server.url))
    assert set(json_outcome) == set(query_outcome)
    differing = {
        name: (json_outcome[name], outcome)
        for name, outcome in query_outcome.items()
        if filled(outcome) != filled(json_outcome[name])
    }
    assert not differing


async def refusal(call: Callable[..., Any], **parameters: Any) -> tuple[str, int, str]:
    """Return code, status and text of a refusal."""
    with pytest.raises(ClientError) as refused:
        await in_thread(call, **parameters)
    response = refused.value.response
    return (
        response["Error"]["Code"],
        response["ResponseMetadata"]["HTTPStatusCode"],
        response["Error"]["Message"],
    )


async def test_an_access_key_of_the_file_is_accepted(access: QueueAccess) -> None:
    """Its name is the publisher of what it sends."""
    async with running_sqs({"q": {}}, access=access) as server:
        client = new_client(server.url, "AKIA", SECRET)
        url = (await in_thread(client.get_queue_url, QueueName="q"))["QueueUrl"]
        await in_thread(client.send_message, QueueUrl=url, MessageBody="a")
        (found,) = (
            await in_thread(
                client.receive_message,
                QueueUrl=url,
                WaitTimeSeconds=20,
                MessageSystemAttributeNames=["SenderId"],
            )
        )["Messages"]
        assert found["Attributes"]["SenderId"] == "importer"


async def test_signatures_that_are_not_accepted(access: QueueAccess) -> None:
    """An unknown key, a wrong secret, none at all, and a clock that is wrong."""
    async with running_sqs({"q": {}}, access=access) as server:
        unknown = new_client(server.url, "nobody", SECRET)
        assert (await refusal(unknown.list_queues))[:2] == ("InvalidClientTokenId", 403)
        wrong = new_client(server.url, "AKIA", "another")
        assert (await refusal(wrong.list_queues))[:2] == ("SignatureDoesNotMatch", 403)
        status, answer, _ = await post(server, {"X-Amz-Target": "AmazonSQS.ListQueues"}, b"{}")
        assert (status, answer["__type"].partition("#")[2]) == (
            403,
            "MissingAuthenticationTokenException",
        )

    def late() -> float:
        return datetime.now(UTC).timestamp() + ALLOWED_SKEW_SECONDS + 60

    async with running_sqs({"q": {}}, access=access, wall_clock=late) as server:
        good = new_client(server.url, "AKIA", SECRET)
        code, status, text = await refusal(good.list_queues)
        assert (code, status) == ("SignatureDoesNotMatch", 403)
        assert "15 minutes" in text


async def test_a_caller_may_send_so_many_requests(tmp_path: Path) -> None:
    """As its token says; SDKs know the code."""
    (tmp_path / "importer.secret").write_text(SECRET)
    file = tmp_path / "tokens.yaml"
    file.write_text(
        "tokens: [{name: importer, secret_file: importer.secret, roles: {},"
        " requests_per_second: 0.000001}]"
    )
    async with running_sqs({"q": {}}, access=QueueAccess.load(str(file))) as server:
        client = new_client(server.url, "importer", SECRET)
        await in_thread(client.list_queues)
        assert (await refusal(client.list_queues))[:2] == ("RequestThrottled", 429)


async def test_roles_decide_what_a_caller_may_do(access: QueueAccess) -> None:
    """Who has no role in a queue does not learn that it exists."""
    async with running_sqs({"q": {}, "other": {}}, access=access) as server:
        reader = new_client(server.url, "reader", READER_SECRET)
        listed = (await in_thread(reader.list_queues))["QueueUrls"]
        assert [url.rpartition("/")[2] for url in listed] == ["q"]
        (url,) = listed
        other = url.replace("/q", "/other")
        await in_thread(reader.receive_message, QueueUrl=url)
        await in_thread(reader.get_queue_attributes, QueueUrl=url, AttributeNames=["All"])
        denied = ("AccessDenied", 403)
        unknown = ("AWS.SimpleQueueService.NonExistentQueue", 400)
        told = await refusal(reader.send_message, QueueUrl=url, MessageBody="a")
        assert told[:2] == denied
        assert "write" in told[2]
        for call in (reader.purge_queue, reader.delete_queue):
            assert (await refusal(call, QueueUrl=url))[:2] == denied
        assert (await refusal(reader.create_queue, QueueName="new"))[:2] == denied
        assert (await refusal(reader.receive_message, QueueUrl=other))[:2] == unknown
        assert (await refusal(reader.get_queue_url, QueueName="other"))[:2] == unknown
        assert (await refusal(reader.get_queue_url, QueueName="none"))[:2] == unknown


async def test_a_reader_creates_no_group(access: QueueAccess) -> None:
    """A group holds messages, and takes them out of a queue that keeps them for replays."""
    async with running_sqs({"q": {"groups": {}}}, access=access) as server:
        url = f"{server.url}/000000000000/q"
        reader = new_client(server.url, "reader", READER_SECRET)
        told = await refusal(reader.receive_message, QueueUrl=url)
        assert told[:2] == ("AccessDenied", 403)
        assert "the role admin, as there is no group default yet" in told[2]
        assert not server.service.engine.outline("q").groups
        await in_thread(new_client(server.url, "AKIA", SECRET).receive_message, QueueUrl=url)
        await in_thread(reader.receive_message, QueueUrl=url)


async def post(
    server: RunningSqs,
    headers: Mapping[str, str],
    body: bytes,
    method: str = "POST",
    path: str = "/",
) -> tuple[int, Any, Mapping[str, str]]:
    """Send a request of one's own; return status, answer and headers."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, data=body, headers=headers) as response,
    ):
        text = await response.text()
        is_json = "json" in response.headers["Content-Type"]
        return response.status, json.loads(text) if is_json else text, response.headers


FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_page_in_a_browser_cannot_use_the_api(method: str) -> None:
    """It may send forms to any address, without asking, but no header of an SDK."""
    async with running_sqs({"q": {}}) as server:
        query = "Action=DeleteQueue&QueueUrl=q"
        path, body = (f"/?{query}", b"") if method == "GET" else ("/", query.encode())
        status, answer, _ = await post(server, FORM, body, method, path)
        assert status == 403
        assert "MissingAuthenticationToken" in answer
        assert list(server.service.names()) == ["q"]
        status, _, _ = await post(server, {"Content-Type": "text/plain"}, b"{}")
        assert status == 403


async def test_each_answer_has_an_id() -> None:
    """In the header and, in the query protocol, in the body."""
    async with running_sqs({"q": {}}) as server:
        target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
        _, _, first = await post(server, target, b"{}")
        _, _, second = await post(server, target, b"{}")
        assert first["x-amzn-RequestId"] != second["x-amzn-RequestId"]
        _, answer, headers = await post(server, FORM, b"Action=ListQueues")
        assert headers["x-amzn-RequestId"] in answer


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"X-Amz-Target": "AmazonSQS.Sing"}, b"{}", 400, "UnknownOperationException"),
        ({"X-Amz-Target": "DynamoDB.Get"}, b"{}", 400, "UnknownOperationException"),
        ({"X-Amz-Target": "AmazonSQS.ListQueues"}, b"{", 400, "SerializationException"),
        ({"X-Amz-Target": "AmazonSQS.SendMessage"}, b"{}", 400, "MissingRequiredParameter"),
        (
            {"X-Amz-Target": "AmazonSQS.SendMessage"},
            b'{"QueueUrl": 5}',
            400,
            "SerializationException",
        ),
        ({"X-Amz-Target": "AmazonSQS.SendMessage"}, b" " * 3000, 413, "RequestEntityTooLarge"),
    ],
)
async def test_requests_that_are_none_get_an_error_of_the_protocol(
    headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    """Whatever is wrong with them."""
    async with running_sqs({"q": {}}, max_request_bytes=2048) as server:
        found, answer, told = await post(server, headers, body)
        assert found == status
        assert code in answer["__type"]
        assert answer["message"]
        assert told["x-amzn-query-error"].endswith(";Sender")
        found, answer, _ = await post(server, headers, b"{}", "PUT")
        assert found == 400


async def test_a_body_is_bounded_whatever_http_may_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of SQS needs more."""
    monkeypatch.setattr(api, "MAX_BODY_BYTES", 2048)
    async with running_sqs({"q": {}}) as server:
        status, _, _ = await post(server, {"X-Amz-Target": "AmazonSQS.ListQueues"}, b" " * 3000)
        assert status == 413


async def test_a_message_of_mqtt_is_received_with_its_topic() -> None:
    """And a payload that is no text in base64."""
    async with running_sqs({"q": {"physical_queues": 1}}) as server:
        client = new_client(server.url)
        messages = [
            NewMessage(Message("plant/7", payload, qos=0, publisher="sensor"))
            for payload in (b"21.5", b"\xff")
        ]
        await server.service.queue("q").buffer.store(messages)
        answer = await in_thread(
            client.receive_message,
            QueueUrl="q",
            WaitTimeSeconds=20,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
        )
        text, binary = answer["Messages"]
        assert text["Body"] == "21.5"
        assert {name: one["StringValue"] for name, one in text["MessageAttributes"].items()} == {
            "topic": "plant/7",
            "qos": "0",
            "publisher": "sensor",
        }
        assert binary["Body"] == "/w=="
        assert binary["MessageAttributes"]["body_encoding"]["StringValue"] == "base64"


async def test_a_receive_is_held_until_a_message_comes() -> None:
    """Not until its wait ends."""
    async with running_sqs({"q": {}}) as server:
        client = new_client(server.url)
        waiting = asyncio.ensure_future(
            in_thread(client.receive_message, QueueUrl="q", WaitTimeSeconds=20)
        )
        await until_held(server)
        await in_thread(new_client(server.url).send_message, QueueUrl="q", MessageBody="a")
        assert [one["Body"] for one in (await waiting)["Messages"]] == ["a"]


async def until_held(server: RunningSqs) -> None:
    """Wait until a request is held."""

    def is_held() -> bool:
        groups = server.service.figures("q")["groups"]
        return bool(groups["default"].get("requests", {}).get("waiting"))

    await until(is_held)


async def test_a_full_queue_has_senders_repeat_later() -> None:
    """A batch says which entries are stored."""
    async with running_sqs({"q": {"max_messages": 2}}) as server:
        client = new_client(server.url)
        answer = await in_thread(
            client.send_message_batch,
            QueueUrl="q",
            Entries=[{"Id": one, "MessageBody": one} for one in "abc"],
        )
        assert [one["Id"] for one in answer["Successful"]] == ["a", "b"]
        (failed,) = answer["Failed"]
        assert (failed["Id"], failed["Code"]) == ("c", "RequestThrottled")
        assert not failed["SenderFault"]
        told = await refusal(client.send_message, QueueUrl="q", MessageBody="d")
        assert told[:2] == ("RequestThrottled", 429)
        assert "max_messages" in told[2]


async def test_too_many_messages_in_flight_are_over_the_limit() -> None:
    """Until some are deleted."""
    groups = {"default": {"max_leased_messages": 1}}
    async with running_sqs({"q": {"groups": groups}}) as server:
        client = new_client(server.url)
        for body in ("a", "b"):
            await in_thread(client.send_message, QueueUrl="q", MessageBody=body)
        answer = await in_thread(client.receive_message, QueueUrl="q", WaitTimeSeconds=20)
        (found,) = answer["Messages"]
        told = await refusal(client.receive_message, QueueUrl="q")
        assert told[:2] == ("OverLimit", 403)
        handle = found["ReceiptHandle"]
        await in_thread(client.delete_message, QueueUrl="q", ReceiptHandle=handle)
        answer = await in_thread(client.receive_message, QueueUrl="q", WaitTimeSeconds=20)
        assert len(answer["Messages"]) == 1


class FailingStore(MemoryStore):
    """A store that can be told to refuse.

    Attributes:
        error: raised by each write; None to write.
    """

    error: StorageError | None = None

    def write(self, changes: Changes) -> None:
        """Write, or refuse."""
        if self.error is not None:
            raise self.error
        super().write(changes)


@pytest.mark.parametrize(
    ("error", "status"), [(StorageError("broken"), 503), (StorageFullError("full"), 507)]
)
async def test_a_storage_that_refuses_is_no_fault_of_the_sender(
    error: StorageError, status: int
) -> None:
    """When it works again, so do requests."""
    store = FailingStore()
    async with running_sqs({"q": {}}, store=store) as server:
        client = new_client(server.url)
        store.error = error
        told = await refusal(client.send_message, QueueUrl="q", MessageBody="a")
        assert told[:2] == ("ServiceUnavailable", status)
        store.error = None
        await in_thread(client.send_message, QueueUrl="q", MessageBody="a")


async def test_a_group_of_readers_by_range_is_not_for_sqs() -> None:
    """The error says so."""
    async with running_sqs({"q": {"groups": {"default": {"kind": "offsets"}}}}) as server:
        told = await refusal(new_client(server.url).receive_message, QueueUrl="q")
        assert told[:2] == ("AWS.SimpleQueueService.UnsupportedOperation", 400)
        assert "default" in told[2]
