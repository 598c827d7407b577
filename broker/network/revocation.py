"""Certificate revocation lists (RFC 5280, section 5), as far as Python's `ssl` lacks them.

OpenSSL refuses a revoked certificate in the handshake. For connections that exist when a new list
is read, and for the dates of a list, Python has no function. So this module reads which serial
numbers of which issuer a list names, and when it expires; asn1crypto decodes them. No signature is
verified here: OpenSSL has verified the list by the time it accepts a client's certificate.
"""

from __future__ import annotations

import datetime as dt
import re
from base64 import b64decode
from typing import Final, NamedTuple

_PEM: Final = re.compile("-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)


class RevocationList(NamedTuple):
    """One list.

    Attributes:
        serials: the serial numbers of the certificates that it has revoked.
        next_update: when the list expires; None where it does not say.
    """

    issuer: bytes
    serials: frozenset[int]
    next_update: dt.datetime | None


def read_lists(text: str) -> list[RevocationList]:
    """Read all lists of a PEM file; it may have none.

    Raises:
        ValueError: a list cannot be decoded.
    """
    return [_read_list(b64decode(found)) for found in _PEM.findall(text)]


def _read_list(data: bytes) -> RevocationList:
    from asn1crypto.crl import CertificateList  # noqa: PLC0415 (few need it, and it takes 0.1 s)

    try:
        fields = CertificateList.load(data)["tbs_cert_list"]
        serials = frozenset(
            one["user_certificate"].native for one in fields["revoked_certificates"]
        )
        return RevocationList(fields["issuer"].dump(), serials, fields["next_update"].native)
    except ValueError as error:
        raise ValueError("not the DER of a revocation list") from error


def is_revoked(lists: list[RevocationList], certificate: bytes) -> bool:
    """Say whether a certificate is in a list of its issuer.

    Raises:
        ValueError: the certificate cannot be decoded.
    """
    from asn1crypto.x509 import Certificate  # noqa: PLC0415 (as above)

    try:
        shown = Certificate.load(certificate)
        serial, issuer = shown.serial_number, shown.issuer.dump()
    except ValueError as error:
        raise ValueError("not the DER of a certificate") from error
    return any(serial in one.serials for one in lists if one.issuer == issuer)
