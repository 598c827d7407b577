from __future__ import annotations

import json

import pytest

from penstock.plugins.queue.engines.expiry import count_down


@pytest.mark.parametrize(("now", "left"), [(10.0, 50), (10.4, 50), (59.5, 1)])
def test_what_is_left_of_the_interval_is_told(now: float, left: int) -> None:
    """In whole seconds, rounded up; other properties stay."""
    properties = '{"message_expiry_interval": 60, "content_type": "ü"}'
    counted = json.loads(count_down(properties, 60.0, now))
    assert counted == {"message_expiry_interval": left, "content_type": "ü"}
