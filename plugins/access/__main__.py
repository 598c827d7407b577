"""``python -m plugins.access`` is ``penstock passwd``."""

from __future__ import annotations

import sys

from plugins.access.passwd import main

if __name__ == "__main__":
    sys.exit(main())
