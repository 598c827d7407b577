"""The address by which a client counts for the limits on each address.

The core imports it, and so it stands apart from `limits`, whose keys are checked by pydantic.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

_IPV6_NETWORK_BITS: Final = 64


@functools.lru_cache(1024)
def address_key(address: str) -> str:
    """Return what an address is counted by: itself, or the network of an IPv6 address.

    A host has a /64 network of IPv6 to choose addresses from.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), _IPV6_NETWORK_BITS), strict=False))
