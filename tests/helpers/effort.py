"""The number of examples of a property test, in each run and before a release."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

SUITE_PERCENT: Final = 25
"""The percentage of the full number that each run of the suite tries. The examples are equal in
each run: more of them find more only once, when the test or the code is new."""

LEAST_EXAMPLES: Final = 25
"""The least number of examples. Fewer miss rules of a state machine: with these, each of some
ten rules is tried in a hundred steps."""


def examples(n_full: int) -> int:
    """Return how many examples to try under the profile of hypothesis that is in use.

    Args:
        n_full: the number under the profile ``thorough``.
    """
    return max(min(n_full, LEAST_EXAMPLES), n_full * settings().max_examples // 100)
