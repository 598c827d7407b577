from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.plugins.web.limits import HttpLimits


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connections", 0),
        ("connections", "many"),
        ("header_timeout_seconds", 0),
        ("idle_timeout_seconds", float("inf")),
        ("body_bytes", 1),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(key: str, value: Any) -> None:
    """With the key that names it; keys of bodies are the queue's."""
    with pytest.raises(ConfigError, match=rf"http_limits\.{key}"):
        validate_config(HttpLimits, {key: value}, "policy.yaml", "http_limits")
