from __future__ import annotations

from typing import Any

import pytest

from penstock.plugins.access.certificate import alternative_name, subject


def certificate(*names: tuple[str, str]) -> dict[str, Any]:
    """Return a certificate with these attributes in its subject, as `ssl` shows it."""
    return {"subject": tuple((name,) for name in names), "version": 3}


WHOLE = certificate(
    ("countryName", "GB"),
    ("organizationName", "Example, Ltd"),
    ("organizationalUnitName", "Production"),
    ("commonName", "test client"),
)


def test_the_subject_is_written_as_in_rfc_2253() -> None:
    """Last part first, commas escaped, several attributes of one part joined."""
    assert subject(WHOLE) == "CN=test client,OU=Production,O=Example\\, Ltd,C=GB"
    several = {"subject": ((("commonName", "a"), ("userId", "b")), (("serialNumber", "7"),))}
    assert subject(several) == "serialNumber=7,CN=a+UID=b"
    assert subject({}) is None


@pytest.mark.parametrize(
    ("value", "written"),
    [("#a", "\\#a"), (" a ", "\\ a\\ "), ('a"b+c', 'a\\"b\\+c'), (" ", "\\ "), ("a\\", "a\\\\")],
)
def test_what_would_read_as_another_subject_is_escaped(value: str, written: str) -> None:
    """RFC 2253, 2.4."""
    assert subject(certificate(("commonName", value))) == f"CN={written}"


def test_an_alternative_name_is_the_first_of_its_kind() -> None:
    """None where there is none of it, whatever others there are."""
    names = (("DNS", "a.example"), ("URI", "spiffe://a/b"), ("DNS", "b.example"))
    found = {"subjectAltName": names}
    assert alternative_name(found, "san_dns") == "a.example"
    assert alternative_name(found, "san_uri") == "spiffe://a/b"
    assert alternative_name(found, "san_email") is None
    assert alternative_name(WHOLE, "san_dns") is None
