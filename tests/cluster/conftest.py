"""What tests of a cluster have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.cluster import Cluster, running_brokers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers; each test has clients and topics of its own."""
    with running_brokers(tmp_path_factory.mktemp("cluster"), "a", "b", "c") as brokers:
        yield brokers
