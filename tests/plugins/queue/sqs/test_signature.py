from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    MISSING_TOKEN,
    WRONG_SIGNATURE,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.signature import (
    ALLOWED_SKEW_SECONDS,
    SignedRequest,
    read_credential,
    verify,
)

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEY = "AKIDEXAMPLE"
BODY = b'{"QueueUrl": "http://127.0.0.1/0/q"}'


def botocores(
    url: str = "http://127.0.0.1:9324/", body: bytes = BODY, more: Mapping[str, str] | None = None
) -> tuple[SignedRequest, float]:
    """Return a request that botocore has signed, as a server receives it, and when."""
    before = datetime.now(UTC).timestamp()
    request = AWSRequest("POST", url, dict(more or {"X-Amz-Target": "AmazonSQS.ListQueues"}), body)
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(request)
    rest = url.partition("://")[2]
    host, slash, path = rest.partition("/")
    path, _, query = f"{slash}{path}".partition("?")
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    return SignedRequest("POST", path, query, [("host", host), *headers], body), before


def replaced(request: SignedRequest, name: str, value: str | None) -> SignedRequest:
    """Return a request with another value of a header; None to leave it out."""
    headers = [pair for pair in request.headers if pair[0] != name]
    return request._replace(headers=headers + ([] if value is None else [(name, value)]))


def refusal(request: SignedRequest, now: float, secret: str = SECRET) -> tuple[Fault, str]:
    """Return why a request is refused."""
    with pytest.raises(SqsError) as refused:
        verify(request, read_credential(request), secret, now)
    return refused.value.fault, str(refused.value)


def test_amazons_own_example_is_accepted() -> None:
    """`get-vanilla` of the test suite that Amazon publishes."""
    request = SignedRequest(
        "GET",
        "/",
        "",
        [
            ("host", "example.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
            (
                "authorization",
                (
                    f"AWS4-HMAC-SHA256 Credential={KEY}/20150830/us-east-1/service/aws4_request, "
                    "SignedHeaders=host;x-amz-date, Signature="
                    "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
                ),
            ),
        ],
        b"",
    )
    now = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
    verify(request, read_credential(request), SECRET, now, "service")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9324/",
        "http://127.0.0.1:9324/000000000000/q",
        "http://127.0.0.1:9324//a/./b/../c/",
        "http://127.0.0.1:9324/?Action=ListQueues&Version=2012-11-05&A=b%20c",
        "http://127.0.0.1:9324/%C3%A4%2Fb",
    ],
)
def test_what_botocore_signs_is_accepted(url: str) -> None:
    """Each form of path and query."""
    request, now = botocores(url)
    verify(request, read_credential(request), SECRET, now)


@given(body=st.binary(max_size=200), value=st.text("ab =,;  ", max_size=20))
def test_any_body_and_header_value_is_signed_as_botocore_does(body: bytes, value: str) -> None:
    """Spaces in values are joined, and all bytes of the body count."""
    request, now = botocores(body=body, more={"X-Amz-Note": value})
    verify(request, read_credential(request), SECRET, now)


@pytest.mark.parametrize(
    ("part", "value"),
    [("method", "GET"), ("path", "/other"), ("query", "Action=PurgeQueue"), ("body", b"{}")],
)
def test_what_was_altered_on_its_way_is_refused(part: str, value: object) -> None:
    """The signature covers method, path, query and body."""
    request, now = botocores()
    altered = request._replace(**{part: value})  # type: ignore[arg-type]
    fault, text = refusal(altered, now)
    assert fault == WRONG_SIGNATURE
    assert "does not match" in text


@pytest.mark.parametrize("name", ["host", "x-amz-target"])
def test_an_altered_header_is_refused(name: str) -> None:
    """The signature covers the headers that decide what is done."""
    request, now = botocores()
    assert refusal(replaced(request, name, "AmazonSQS.PurgeQueue"), now)[0] == WRONG_SIGNATURE


def test_another_secret_is_refused() -> None:
    """The access key is named, the secret is not."""
    request, now = botocores()
    fault, text = refusal(request, now, "another")
    assert fault == WRONG_SIGNATURE
    assert KEY in text
    assert "another" not in text


def test_a_header_of_amazons_that_is_not_signed_is_refused() -> None:
    """Nobody can add an action to a signed request of the query protocol."""
    request, now = botocores(more={"Content-Type": "application/x-www-form-urlencoded"})
    fault, text = refusal(replaced(request, "x-amz-target", "AmazonSQS.PurgeQueue"), now)
    assert fault == INCOMPLETE_SIGNATURE
    assert "x-amz-target" in text


@pytest.mark.parametrize("seconds", [-ALLOWED_SKEW_SECONDS + 2, ALLOWED_SKEW_SECONDS - 2])
def test_clocks_may_differ_by_15_minutes(seconds: float) -> None:
    """In both directions."""
    request, now = botocores()
    verify(request, read_credential(request), SECRET, now + seconds)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(ALLOWED_SKEW_SECONDS + 2, "expired"), (-ALLOWED_SKEW_SECONDS - 2, "not yet current")],
)
def test_clocks_that_differ_by_more_are_named(seconds: float, said: str) -> None:
    """The error has both times and says what to do."""
    request, now = botocores()
    fault, text = refusal(request, now + seconds)
    assert fault == WRONG_SIGNATURE
    assert said in text
    assert str(request.header("x-amz-date")) in text
    assert datetime.fromtimestamp(now + seconds, UTC).strftime("%Y%m%dT%H%M") in text


def test_no_signature_says_what_is_allowed() -> None:
    """A presigned URL and a signature of version 2 get a hint."""
    request, now = botocores()
    unsigned = replaced(request, "authorization", None)
    assert refusal(unsigned, now)[0] == MISSING_TOKEN
    assert "not supported" in refusal(unsigned._replace(query="X-Amz-Signature=1"), now)[1]
    old = "Action=ListQueues&SignatureVersion=2&Signature=abc"
    for request in (unsigned._replace(query=old), unsigned._replace(body=old.encode())):
        assert "sign with version 4" in refusal(request, now)[1]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("authorization", "Bearer abc", "AWS4-HMAC-SHA256"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=0",
            "Credential",
        ),
        ("authorization", "AWS4-HMAC-SHA256 Credential=a/b/c/sqs/aws4_request", "SignedHeaders"),
        ("x-amz-date", None, "X-Amz-Date"),
        ("x-amz-date", "yesterday", "X-Amz-Date"),
        ("x-amz-date", "20000101T000000Z", "date of Credential"),
    ],
)
def test_half_a_signature_is_named(name: str, value: str | None, said: str) -> None:
    """The error names the part that is missing or wrong."""
    request, now = botocores()
    fault, text = refusal(replaced(request, name, value), now)
    assert fault == INCOMPLETE_SIGNATURE
    assert said in text


def test_a_body_that_is_not_signed_is_refused() -> None:
    """Some services allow it; here anybody could then replace the body."""
    request, now = botocores(more={"X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"})
    fault, text = refusal(request, now)
    assert fault == INCOMPLETE_SIGNATURE
    assert "UNSIGNED-PAYLOAD" in text
    digest = hashlib.sha256(BODY).hexdigest()
    request, now = botocores(more={"X-Amz-Content-Sha256": digest})
    verify(request, read_credential(request), SECRET, now)


def test_a_signature_for_another_service_is_refused() -> None:
    """One for S3 cannot be used here."""
    request, now = botocores()
    authorization = (request.header("authorization") or "").replace("/sqs/", "/s3/")
    fault, text = refusal(replaced(request, "authorization", authorization), now)
    assert fault == INCOMPLETE_SIGNATURE
    assert "s3" in text


def test_bytes_that_are_no_text_are_a_wrong_signature() -> None:
    """As aiohttp hands them over; nothing fails."""
    request, now = botocores()
    odd = request._replace(path="/\udcff", query="a=\udcff")
    assert refusal(replaced(odd, "host", "\udcff"), now)[0] == WRONG_SIGNATURE
