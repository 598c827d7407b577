from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker that lets everybody in, one for all tests of a file."""
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(anonymous_policy(sys_interval=0.2), folder) as running:
        yield running
        assert running.stop() == 0
        assert "ERROR" not in running.log
        assert "Traceback" not in running.log
