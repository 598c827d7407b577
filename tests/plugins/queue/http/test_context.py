from __future__ import annotations

import json

import pytest
from aiohttp.test_utils import make_mocked_request

from penstock.plugins.queue.http.context import AnswerError, query_of, refusal
from penstock.plugins.web.service import RequestError


def test_a_refusal_says_more_than_its_text() -> None:
    """Its keys stand beside `error`, and its headers are sent."""
    answer = refusal(AnswerError("gone", 410, {"earliest": 5}, {"X": "y"}))
    assert (answer.status, answer.headers["X"]) == (410, "y")
    assert json.loads(answer.text or "") == {"error": "gone", "earliest": 5}


def test_a_query_is_checked() -> None:
    """Each key once, and no other."""
    assert query_of(make_mocked_request("GET", "/?a=1"), ["a", "b"])["a"] == "1"
    for query, told in (("c=1", 'read "c"; allowed, each once: a, b'), ("a=1&a=2", 'read "a"')):
        with pytest.raises(RequestError, match=told):
            query_of(make_mocked_request("GET", f"/?{query}"), ["a", "b"])
    with pytest.raises(RequestError, match="allowed, each once: none"):
        query_of(make_mocked_request("GET", "/?a=1"), [])
