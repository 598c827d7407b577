"""Fuzz the connection: python tests/fuzz/fuzz_connection.py -max_total_time=600 [CORPUS_FOLDER]."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def main() -> None:
    """Run until an input breaks a rule, or libFuzzer's options say stop."""
    import atheris  # noqa: PLC0415 (the suite imports the target alone)

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    with atheris.instrument_imports(include=["penstock.broker"]):
        from tests.fuzz import connection_target  # noqa: PLC0415 (imported instrumented)
    logging.disable(logging.CRITICAL)
    atheris.Setup(sys.argv, connection_target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
