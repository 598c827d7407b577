from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.cluster import Service
from tests.system.interop.cases import KINDS, running, running_cases


@pytest.fixture(scope="session", params=KINDS)
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Return what the Eclipse Paho interoperability cases ask for."""
    with running_cases(request.param, tmp_path_factory.mktemp("cases")) as service:
        yield service


@pytest.fixture(scope="module", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Return what lets everybody in, one for all tests of a file."""
    with running(request.param, tmp_path_factory.mktemp("broker")) as service:
        yield service
