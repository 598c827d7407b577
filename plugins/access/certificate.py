"""The names in a client's TLS certificate, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "userId": "UID",
}

_ALTERNATIVE: Final = {"san_dns": "DNS", "san_email": "email", "san_uri": "URI"}
"""A value of `certificate_username`, to the kind of name as `ssl` has it."""

_ESCAPED: Final = frozenset(',+"\\<>;')


def subject(certificate: Mapping[str, Any]) -> str | None:
    """Return the whole subject in the form of RFC 2253, its last part first; None without one.

    mosquitto uses this form, such as ``CN=client,O=Example,C=GB``.
    """
    parts = [
        "+".join(f"{_SHORT_NAMES.get(key, key)}={_escape(value)}" for key, value in name)
        for name in reversed(certificate.get("subject", ()))
    ]
    return ",".join(parts) or None


def alternative_name(certificate: Mapping[str, Any], kind: str) -> str | None:
    """Return the first subject alternative name of a kind (RFC 5280, 4.2.1.6); None without one."""
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())
    return next((name for of, name in names if of == _ALTERNATIVE[kind]), None)


def _escape(value: str) -> str:
    escaped = "".join(f"\\{char}" if char in _ESCAPED else char for char in value)
    if escaped.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(escaped) > 1 and not escaped.endswith("\\ "):
        escaped = f"{escaped[:-1]}\\ "
    return escaped
