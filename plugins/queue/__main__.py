"""``python -m penstock.plugins.queue`` is ``penstock queue``."""

from __future__ import annotations

import sys

from penstock.plugins.queue.gateway import main

if __name__ == "__main__":
    sys.exit(main())
