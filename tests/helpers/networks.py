"""Two hosts of a real network, for tests that need one."""

from __future__ import annotations

import os
from typing import Final

import pytest

from penstock.netem.links.network import Host, Link, Network
from penstock.netem.links.profiles import Profile

NEEDS_ROOT: Final = pytest.mark.skipif(
    os.geteuid() != 0, reason="network namespaces need root, as continuous integration has"
)


def joined(network: Network, profile: Profile) -> tuple[Host, Host, Link]:
    """Return two hosts and the link between them."""
    cloud, edge = network.host("cloud"), network.host("edge")
    return cloud, edge, network.link(cloud, edge, profile)
