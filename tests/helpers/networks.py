"""What tests with real networks have in common."""

from __future__ import annotations

import os
from typing import Final

import pytest

NEEDS_ROOT: Final = pytest.mark.skipif(
    os.geteuid() != 0, reason="network namespaces need root, as continuous integration has"
)
