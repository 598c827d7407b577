from __future__ import annotations

import pytest

from penstock.broker.config.addresses import address_key


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("elsewhere", "elsewhere"),
    ],
)
def test_what_an_address_is_counted_by(address: str, key: str) -> None:
    """A host with IPv6 has a whole network to choose from."""
    assert address_key(address) == key
