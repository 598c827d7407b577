"""``python -m penstock.plugins.access`` is ``penstock passwd``."""

from __future__ import annotations

import sys

from penstock.plugins.access.passwd import main

if __name__ == "__main__":
    sys.exit(main())
