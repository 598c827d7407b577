"""Large messages to one subscriber under a policy, on a virtual clock of whole seconds (paper 002).

A large message costs half the RTT of the second in which it is delivered, times ten. Decisions are
made on arrival, in each second with news of a query, and in the first second after the policy's own
release time, as the broker's gate asks for. Messages do not queue behind each other.

There are two readings of the time at which a query's RTT is known. All policies of a run have the
same one.

* ``period``: at each multiple of T_Q the RTT of the second before becomes known. A decision at
  second t sees the sample of second ``floor(t / T_Q) * T_Q - 1``. Under this reading all the
  paper's results are consistent.
* ``arrival``, as in the broker: queries are sent at multiples of T_Q. An RTT is known as soon as
  its answer comes. Until then the age of the query is the least its RTT can be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.models.papers.withholding.rtt_trace import Arrival, periodic
from penstock.plugins.withholding.policy import Policy, Situation

Answers = Literal["period", "arrival"]


@dataclass(frozen=True)
class WithholdingSetting:
    """Parameters of a simulation, besides policy and trace.

    Attributes:
        threshold_l: RTT of the query on the uncongested path, seconds.
        probe_period: T_Q, whole seconds.
        message_period: the whole seconds between two large messages.
        size_scale: the ratio of a large message's latency to the query's.
        answers: the reading of the time at which an RTT is known, as in the module's docstring.
    """

    threshold_l: float = 0.5
    probe_period: int = 1
    message_period: int = 5
    size_scale: float = 10.0
    answers: Answers = "period"


class Prober:
    """The knowledge from the queries so far.

    Attributes:
        overdue: the age of the oldest unanswered query, seconds, if it exceeds threshold_l;
            otherwise 0. Always 0 with ``period``.
    """

    def __init__(self, trace: Sequence[float], setting: WithholdingSetting) -> None:
        self.overdue = 0
        self._trace = trace
        self._setting = setting
        # Before the first answer only the path's own RTT is known.
        self._latest = setting.threshold_l
        self._unanswered: deque[int] = deque()

    def advance(self, second: int) -> bool:
        """Send and receive the queries of this second; return whether there is a new RTT."""
        if self._setting.answers == "period":
            if second == 0 or second % self._setting.probe_period:
                return False
            self._latest = rtt_at(self._trace, second - 1)
            return True
        queries = self._unanswered
        answered = [sent_at for sent_at in queries if self._known_at(sent_at) <= second]
        while answered and queries and queries[0] <= answered[-1]:
            sent_at = queries.popleft()
            # One that a newer one overtook is given up: its RTT is its age at least.
            is_known = self._known_at(sent_at) <= second
            self._latest = rtt_at(self._trace, sent_at) if is_known else second - sent_at
        if second % self._setting.probe_period == 0:
            queries.append(second)
        age = second - queries[0] if queries else 0
        self.overdue = age if age > self._setting.threshold_l else 0
        return bool(answered)

    def rtt(self) -> float:
        """Return the RTT as far as it is known: for an overdue query, its age."""
        return max(self._latest, self.overdue)

    def _known_at(self, sent_at: int) -> float:
        return sent_at + rtt_at(self._trace, sent_at)


def simulate(
    policy: Policy,
    trace: Sequence[float],
    setting: WithholdingSetting,
    arrivals: Sequence[Arrival] | None = None,
) -> list[float]:
    """Return the end-to-end latency of each large message: network latency plus sojourn.

    Args:
        policy: the policy, which in production a gate asks.
        trace: RTT of the query in each second, seconds; after its end the last value applies.
        setting: the remaining parameters.
        arrivals: the arrivals of the large messages, in order; None for those of the setting.

    Returns:
        One latency in seconds for each message, in order of arrival.
    """
    if arrivals is None:
        arrivals = periodic(len(trace), setting.message_period, setting.size_scale)
    latencies = [0.0] * len(arrivals)
    prober = Prober(trace, setting)
    waiting: list[tuple[int, int]] = []  # number of the message, second of the next look
    second = n_come = 0
    while n_come < len(arrivals) or waiting:
        is_new = prober.advance(second)
        while n_come < len(arrivals) and arrivals[n_come].second <= second:
            waiting.append((n_come, second))
            n_come += 1
        asked, waiting = waiting, []
        for number, look_at in asked:
            if not is_new and second < look_at:
                waiting.append((number, look_at))
                continue
            arrival, scale = arrivals[number]
            judgement = policy.judge(_situation(prober, setting, arrivals[number], second))
            if judgement.delivers:
                latencies[number] = second - arrival + scale / 2 * rtt_at(trace, second)
            else:
                released_at = arrival + math.floor(judgement.release_sojourn) + 1
                waiting.append((number, max(released_at, second + 1)))
        second += 1
    return latencies


def rtt_at(trace: Sequence[float], second: int) -> float:
    """Return the RTT of a second; after the trace's end, its last value."""
    return trace[min(second, len(trace) - 1)]


def _situation(
    prober: Prober, setting: WithholdingSetting, message: Arrival, second: int
) -> Situation:
    arrival, scale = message
    return Situation(
        l_now=scale * prober.rtt() / 2,
        threshold_l=scale * setting.threshold_l,
        sojourn=second - arrival,
        probe_period=setting.probe_period,
    )
