"""The signature of a request (AWS version 4) is checked with the secret of its access key.

Theory of operation. The client writes its request in a canonical form, derives a key from its
secret for one day, region and service, and signs the form with it. The server does the same with
what it received. The secret never travels, and nothing that is signed can be altered. A request is
valid for 15 minutes, so one that somebody copies can be repeated for so long; TLS prevents that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from penstock.plugins.queue.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    MISSING_TOKEN,
    WRONG_SIGNATURE,
    SqsError,
)

ALGORITHM: Final = "AWS4-HMAC-SHA256"

ALLOWED_SKEW_SECONDS: Final = 15 * 60
"""How much the client's clock may differ from the server's, as at Amazon."""

_TIME_FORM: Final = "%Y%m%dT%H%M%SZ"
_SHOWN_CHARACTERS: Final = 80
_UNRESERVED: Final = "-_.~"
_SPACES: Final = re.compile(" +")


class Credential(NamedTuple):
    """An ``Authorization`` header.

    Attributes:
        service: ``sqs``.
        signed_headers: names in lower case, in their order.
        signature: 64 hexadecimal digits.
    """

    access_key_id: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str


class SignedRequest(NamedTuple):
    """What a signature covers.

    Attributes:
        query: the query as it was received, without the question mark.
    """

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header's value, several joined by commas; None for none."""
        values = [_SPACES.sub(" ", value.strip()) for key, value in self.headers if key == name]
        return ",".join(values) if values else None


def read_credential(request: SignedRequest) -> Credential:
    """Return what the request says about its signature.

    Raises:
        SqsError: there is no signature, or none of this form.
    """
    authorization = request.header("authorization")
    if authorization is None:
        where = _signed_elsewhere(request)
        raise SqsError(
            MISSING_TOKEN,
            f"Authorization: read nothing; allowed: {ALGORITHM} with an access key of this "
            f"server.{where}",
        )
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete("algorithm", algorithm, ALGORITHM)
    fields = {
        name: value for name, _, value in (part.strip().partition("=") for part in rest.split(","))
    }
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not fields.get(name):
            raise _incomplete(name, "nothing", f"{name}=...")
    scope = fields["Credential"].rsplit("/", 4)
    if len(scope) != 5 or scope[4] != "aws4_request":
        allowed = "KEY/YYYYMMDD/REGION/sqs/aws4_request"
        raise _incomplete("Credential", fields["Credential"], allowed)
    signed = tuple(fields["SignedHeaders"].lower().split(";"))
    return Credential(scope[0], scope[1], scope[2], scope[3], signed, fields["Signature"])


def verify(
    request: SignedRequest, credential: Credential, secret: str, now: float, service: str = "sqs"
) -> None:
    """Check a request's signature and its age.

    Raises:
        SqsError: it does not match, or is too old or too young.
    """
    if credential.service != service:
        raise _incomplete("service of Credential", credential.service, service)
    for name in sorted({key for key, _ in request.headers}):
        must = name == "host" or name.startswith("x-amz-")
        if must and name not in credential.signed_headers:
            raise _incomplete(
                "SignedHeaders", ";".join(credential.signed_headers), f"{name} among them"
            )
    told = request.header("x-amz-content-sha256")
    if told is not None and told != hashlib.sha256(request.body).hexdigest():
        raise _incomplete(
            "X-Amz-Content-Sha256", told, "the SHA-256 of the body, or no such header"
        )
    time_text = _check_time(request, credential, now)
    expected = sign(request, credential, time_text, secret)
    if not hmac.compare_digest(expected.encode(), _bytes(credential.signature)):
        raise SqsError(
            WRONG_SIGNATURE,
            "The request signature we calculated does not match the signature you provided. Check "
            f"the secret of access key {_shown(credential.access_key_id)} and what lies between "
            "client and server: method, path, Host header and body must arrive as they were "
            "signed.",
        )


def sign(request: SignedRequest, credential: Credential, time_text: str, secret: str) -> str:
    """Return the signature of a request, as 64 hexadecimal digits."""
    headers = "".join(
        f"{name}:{request.header(name) or ''}\n" for name in credential.signed_headers
    )
    canonical = "\n".join(
        (
            request.method,
            quote(_bytes(_normal_path(request.path)), safe="/" + _UNRESERVED),
            _canonical_query(request.query),
            headers,
            ";".join(credential.signed_headers),
            hashlib.sha256(request.body).hexdigest(),
        )
    )
    scope = f"{credential.date}/{credential.region}/{credential.service}/aws4_request"
    hashed = hashlib.sha256(_bytes(canonical)).hexdigest()
    to_sign = f"{ALGORITHM}\n{time_text}\n{scope}\n{hashed}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, _bytes(part), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def _check_time(request: SignedRequest, credential: Credential, now: float) -> str:
    """Return the time of the signature, in the form of X-Amz-Date."""
    text = request.header("x-amz-date")
    if text is None:
        raise _incomplete("X-Amz-Date", "nothing", "YYYYMMDDTHHMMSSZ")
    try:
        signed_at = datetime.strptime(text, _TIME_FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _incomplete("X-Amz-Date", text, "YYYYMMDDTHHMMSSZ") from None
    if not text.startswith(credential.date):
        raise _incomplete("date of Credential", credential.date, text[:8])
    if abs(now - signed_at) > ALLOWED_SKEW_SECONDS:
        ours = datetime.fromtimestamp(now, UTC).strftime(_TIME_FORM)
        if signed_at < now:
            said, limit = "Signature expired", "older"
        else:
            said, limit = "Signature not yet current", "younger"
        raise SqsError(
            WRONG_SIGNATURE,
            f"{said}: {text} is more than 15 minutes {limit} than {ours}, the time of this "
            "server. Set the clocks.",
        )
    return text


def _normal_path(path: str) -> str:
    """Return a path without empty parts and dots, as RFC 3986, 5.2.4 has it."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    end = "/" if parts and path.endswith("/") else ""
    return f"/{'/'.join(parts)}{end}"


def _canonical_query(query: str) -> str:
    """Return a query with its pairs sorted, and encoded in the one form."""
    pairs = []
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        pairs.append((_encoded(name), _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(_bytes(text)), safe=_UNRESERVED)


def _bytes(text: str) -> bytes:
    """Return the bytes that a header or a path arrived as; aiohttp keeps ill-formed ones so."""
    return text.encode(errors="surrogateescape")


def _signed_elsewhere(request: SignedRequest) -> str:
    """Return a hint for clients that sign in a way that is not supported; "" for others."""
    if "x-amz-signature=" in request.query.lower():
        return " X-Amz-Signature in the query is not supported."
    # An SDK of before 2012 signs the parameters, which stand in the query or in the body.
    if "SignatureVersion=" in request.query or b"SignatureVersion=" in request.body:
        return (
            " SignatureVersion among the parameters is not supported: have the SDK sign with "
            "version 4."
        )
    return ""


def _incomplete(name: str, read: str, allowed: str) -> SqsError:
    return SqsError(INCOMPLETE_SIGNATURE, f"{name}: read {_shown(read)}; allowed: {allowed}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
