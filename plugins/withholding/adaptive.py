"""Our own policy: a large message waits while the path is bad, unless they pass it quickly.

The rule, in three sentences:

1. While the path is bad, a large message waits for at most `WAIT_RATIO` times as long as such a
   message last took there, and for `max_withhold` at most; one that is expected to take no longer
   than `exposure` goes at once.
2. After a large message that took longer than `exposure`, the next one waits for as long as that
   one took, and for `MOST_PAUSE_SECONDS` at most; one that has waited for `max_withhold` goes.
3. Several are on their way at a time only if all of them are expected to pass within `exposure`.

What a message takes ends with the client's acknowledgement. So the rule knows no congestion
control, and holds behind a load balancer. What is not known yet is not tried out by sending: on a
path that loses packets that message could occupy the connection for a minute. What
`max_withhold` releases is measurement enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.plugins.withholding.passage import Passage
from penstock.plugins.withholding.policy import Judgement, Policy, Situation

DEFAULT_EXPOSURE = 2.0
"""Seconds that an alarm may wait behind a picture without being late for a person who reads it."""

WAIT_RATIO = 2.0
"""Longest wait for a good path over what the message would take on the bad one: however long that
stays bad, a message takes at most three times as long as without a hold."""

GIVE_UP_SECONDS = 60.0
"""A message that is not acknowledged for so long holds up no other: the client may never do it."""


@dataclass(frozen=True)
class AdaptivePolicy(Policy):
    """Deliver unless the path is bad, the last message was slow, or one is on its way.

    Attributes:
        exposure: seconds for which small messages may wait behind a large one.
    """

    name: ClassVar[str] = "adaptive"
    learns: ClassVar[bool] = True
    exposure: float = DEFAULT_EXPOSURE

    def judge(self, situation: Situation) -> Judgement:
        """Apply the three sentences, the last one first."""
        passage, sojourn, now = situation.passage, situation.sojourn, situation.now
        if passage is None:
            return Judgement(delivers=True, cause="no_estimate", why="nothing is known of the path")
        if passage.bytes_on_way:
            return self._judge_another(situation, passage)
        pause = passage.pause_until - now
        if pause > 0 and sojourn <= self.max_withhold:
            why = f"the one before was slow: a pause of {pause:.3g} s more"
            return Judgement(False, "pause", why, min(sojourn + pause, self.max_withhold))
        if not situation.is_bad:
            return Judgement(delivers=True, cause="calm", why="the path is good")
        wait, why = self.max_withhold, "what it would take is not known"
        if passage.bad_seconds_per_byte is not None:
            expected = passage.bad_seconds_per_byte * situation.n_bytes
            why = f"it would take {expected:.3g} s"
            if expected <= self.exposure:
                why = f"{why}, exposure {self.exposure:.3g} s"
                return Judgement(delivers=True, cause="exposure", why=why)
            wait = min(wait, WAIT_RATIO * expected)
        why = f"the path is bad, {why}: withheld {sojourn:.3g} s of {wait:.3g} s"
        if sojourn > wait:
            return Judgement(delivers=True, cause="bound", why=why)
        return Judgement(False, "congested", why, wait)

    def _judge_another(self, situation: Situation, passage: Passage) -> Judgement:
        """Say whether one more may be on its way at a time."""
        age = situation.now - passage.oldest_at
        if not situation.is_bad and passage.seconds_per_byte is not None:
            n_bytes = passage.bytes_on_way + situation.n_bytes
            expected = age + passage.seconds_per_byte * n_bytes
            if expected <= self.exposure:
                why = f"all on their way take {expected:.3g} s, exposure {self.exposure:.3g} s"
                return Judgement(delivers=True, cause="exposure", why=why)
        why = f"another is on its way, for {age:.3g} s"
        if age > GIVE_UP_SECONDS and situation.sojourn > self.max_withhold:
            return Judgement(delivers=True, cause="bound", why=why)
        left = max(GIVE_UP_SECONDS - age, self.max_withhold - situation.sojourn)
        return Judgement(False, "on_way", why, situation.sojourn + left)
