"""Certificate revocation lists (RFC 5280, section 5): what Python's `ssl` does not tell of them.

OpenSSL refuses a revoked certificate in the handshake. For connections that exist when a new list
is read, and for the dates of a list, Python has no function. So this module reads which serial
numbers of which issuer a list names, and when it expires. It verifies no signatures: OpenSSL has
verified the list by the time it accepts a client's certificate.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_PEM: Final = re.compile("-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)

_INTEGER: Final = 0x02
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
"""The explicit tag of a certificate's version."""
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FORMS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class RevocationList(NamedTuple):
    """One list.

    Attributes:
        issuer: DER of the authority's name.
        serials: of the certificates that it has revoked.
        next_update: when the list expires; None where it does not say.
    """

    issuer: bytes
    serials: frozenset[int]
    next_update: dt.datetime | None


class _Element(NamedTuple):
    """One element of DER: its tag, its content, and all its bytes."""

    tag: int
    content: bytes
    whole: bytes


def read_lists(text: str) -> list[RevocationList]:
    """Read all lists of a PEM file; it may have none.

    Raises:
        ValueError: a list cannot be decoded.
    """
    return [_read_list(base64.b64decode(found, validate=False)) for found in _PEM.findall(text)]


def is_revoked(lists: list[RevocationList], certificate: bytes) -> bool:
    """Say whether a certificate is in a list of its issuer.

    Args:
        lists: to search.
        certificate: in DER.

    Raises:
        ValueError: the certificate cannot be decoded.
    """
    fields = _inside(_inside(certificate, _SEQUENCE)[0].whole, _SEQUENCE)
    if fields[0].tag == _VERSION:
        del fields[0]
    serial, _, issuer = fields[:3]
    number = int.from_bytes(serial.content, "big", signed=True)
    return any(number in one.serials for one in lists if one.issuer == issuer.whole)


def _read_list(data: bytes) -> RevocationList:
    fields = _inside(_inside(data, _SEQUENCE)[0].whole, _SEQUENCE)
    if fields[0].tag == _INTEGER:  # the version
        del fields[0]
    _, issuer, _, *rest = fields  # algorithm, issuer, this update
    next_update = None
    if rest and rest[0].tag in _FORMS:
        next_update = _time(rest.pop(0))
    revoked = rest[0].content if rest and rest[0].tag == _SEQUENCE else b""
    serials = (next(_elements(entry.content)).content for entry in _elements(revoked))
    numbers = frozenset(int.from_bytes(serial, "big", signed=True) for serial in serials)
    return RevocationList(issuer.whole, numbers, next_update)


def _time(element: _Element) -> dt.datetime:
    return dt.datetime.strptime(element.content.decode(), _FORMS[element.tag]).replace(
        tzinfo=dt.UTC
    )


def _inside(data: bytes, tag: int) -> list[_Element]:
    """Return the elements in an element that must have this tag.

    Raises:
        ValueError: it has another tag, or is empty.
    """
    element = next(_elements(data), None)
    if element is None or element.tag != tag:
        raise ValueError("not the DER of a certificate or a revocation list")
    inside = list(_elements(element.content))
    if not inside:
        raise ValueError("an empty element of DER")
    return inside


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the elements of a DER encoding.

    Raises:
        ValueError: it is truncated.
    """
    at = 0
    while at < len(data):
        start = at
        tag, at = data[at], at + 2
        n_bytes = data[at - 1] if at <= len(data) else len(data)
        if n_bytes & 0x80:
            n_more = n_bytes & 0x7F
            n_bytes = int.from_bytes(data[at : at + n_more], "big")
            at += n_more
        end = at + n_bytes
        if end > len(data):
            raise ValueError("truncated DER")
        yield _Element(tag, data[at:end], data[start:end])
        at = end
