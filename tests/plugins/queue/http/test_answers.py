from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from aiohttp.test_utils import make_mocked_request

from penstock.plugins.queue.batch_format import Selection, write_batch
from penstock.plugins.queue.http import answers, arrow
from penstock.plugins.queue.http.requests import Writing
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    Batch,
    ReceivedMessage,
    read_deliveries,
)
from penstock.plugins.web.service import RequestError
from tests.helpers.works import finished

JSON = "application/json"


def body_of(work: Writing) -> tuple[bytes, int]:
    """Run a work to its end; return the whole body and the number of steps."""
    pieces, n_steps = finished(work)
    return b"".join(pieces), n_steps


def batch(payloads: Sequence[bytes]) -> Batch:
    """Return a batch of messages with these payloads."""
    n = len(payloads)
    return Batch(
        list(range(n)), ["ü"] * n, list(payloads), [1] * n, [""] * n, [1.5] * n, ['{"x": 1}'] * n
    )


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("text/html, application/*;q=0.9", JSON),
        (BATCH_CONTENT_TYPE, BATCH_CONTENT_TYPE),
        (f"{BATCH_CONTENT_TYPE};q=0.1, {JSON}", JSON),
        (f"{JSON};q=0.5, {BATCH_CONTENT_TYPE};Q=0.6", BATCH_CONTENT_TYPE),
        (f"{BATCH_CONTENT_TYPE};q=x, text/html", BATCH_CONTENT_TYPE),
        (arrow.CONTENT_TYPE, arrow.CONTENT_TYPE),
    ],
)
def test_the_client_chooses_the_type(accept: str | None, content_type: str) -> None:
    """By weight, then by order; JSON where anything is accepted."""
    headers = {} if accept is None else {"Accept": accept}
    assert answers.accepted_type(make_mocked_request("GET", "/", headers)) == content_type


@pytest.mark.parametrize("accept", ["text/html", f"{JSON};q=0", "", "application/xml, image/*"])
def test_a_type_that_there_is_not_is_told(accept: str) -> None:
    """406, with those that there are."""
    request = make_mocked_request("GET", "/", {"Accept": accept})
    if not accept:
        assert answers.accepted_type(request) == JSON  # an empty header says nothing
        return
    with pytest.raises(RequestError, match=f"Accept: read .*; allowed: {JSON}") as raised:
        answers.accepted_type(request)
    assert raised.value.status == 406


def test_json_is_written_in_steps() -> None:
    """Each message is one, and each piece of a large payload; no piece is large."""
    frame = write_batch(batch([b"x" * 1_000_000, b"", b"\xff"]))
    work = answers.write_range([frame], JSON, Selection())
    body, n_steps = body_of(work)
    messages = json.loads(body)["messages"]
    assert [one["payload"] for one in messages][1:] == ["", "/w=="]
    assert messages[0]["properties"] == {"x": 1}
    assert messages[0]["topic"] == "ü"
    assert n_steps > 20


def test_no_message_is_an_empty_list_or_an_empty_body() -> None:
    """In each format."""
    assert json.loads(body_of(answers.write_received([], JSON))[0]) == {"messages": []}
    assert body_of(answers.write_received([], BATCH_CONTENT_TYPE))[0] == b""
    assert body_of(answers.write_range([], BATCH_CONTENT_TYPE, Selection()))[0] == b""


def test_received_messages_are_written_in_several_frames() -> None:
    """As large as those of the storage; a reader joins them."""
    messages = [ReceivedMessage("h", 1, 0, n, "a", b"x" * 100, 1, "", 0.0, "") for n in range(1000)]
    body, n_steps = body_of(answers.write_received(messages, BATCH_CONTENT_TYPE))
    assert read_deliveries(body) == messages
    assert n_steps >= 3


def test_frames_say_how_many_messages_they_hold() -> None:
    """Without a look at their columns."""
    frames = [write_batch(batch([b"x"] * n)) for n in (3, 4)]
    assert (answers.count(frames), answers.count([])) == (7, 0)
