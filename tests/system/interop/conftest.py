from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.process import ANONYMOUS, BrokerProcess, running_broker
from tests.system.interop.cases import LIMITS, NO_SUBSCRIBE

GUARD = f'''
"""Refuses subscriptions to one topic filter, as a plugin of aMQTT."""

from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin


class Guard(BaseTopicPlugin):
    async def topic_filtering(self, *, session=None, topic=None, action=None):
        return action != Action.SUBSCRIBE or topic != "{NO_SUBSCRIBE}"
'''


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return the broker that the Eclipse Paho interoperability cases ask for."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "guard.py").write_text(GUARD)
    policy = {
        "listeners": {"default": {"bind": "127.0.0.1:0"}},
        "limits": LIMITS,
        "mqtt": {"reveal_refusals": False},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}, "guard.Guard": {}},
    }
    with running_broker(policy, folder) as running:
        yield running
        assert running.stop() == 0
        assert "ERROR" not in running.log
        assert "Traceback" not in running.log
