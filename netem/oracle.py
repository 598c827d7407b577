"""The oracle: a delivery gate that knows what links carry, as a perfect estimator would.

It is a plugin of experiments alone (`kind: oracle` of a scenario's broker), and no part of the
product. The harness writes, before the traffic begins, what each subscriber's link is from when on;
the gate looks at the present alone, and never ahead.

The rule, with the constants below:

* A large message goes if the link, as it is now, would take at most `EXPOSURE_SECONDS` for it, and
  no other large message to the same subscriber is unacknowledged.
* Otherwise it is held, for `MOST_HOLD_SECONDS` at most.

The time that a link takes for a message is the message's bytes over TCP's throughput, plus the
round trips until all is acknowledged: one, and where packets are lost as many as it takes until
none of the message's packets is lost again. TCP's throughput is the rate less the share of lost
packets. A congestion control that takes losses for congestion reaches at most the rate of the
throughput equation (RFC 5348, 3.1, with one acknowledgement for each packet). Subscribers that
share a link and have a large message under way have equal parts of it. Nothing passes a link that
loses all packets.

That is not exact, and need not be: it only says on which side of `EXPOSURE_SECONDS` a message is.
The table has median seconds for 1 MB at 2.5 MB/s, as measured, and by the rule in brackets:

========= ==== ========= ========= ========= ========= =========
lost           1 %       5 %       10 %      15 %      20 %
rtt, s
========= ==== ========= ========= ========= ========= =========
cubic     0.04 2.9 (2.5) 7.9 (7.5) 12 (16)             25 (51)
cubic     0.2  11 (12)   33 (38)   49 (78)             60 (260)
bbr       0.06 0.5 (0.5) 0.6 (0.6) 0.7 (0.6) 1.2 (0.7) 7.8 (77)
bbr       0.2  0.8 (0.7) 1.1 (0.9) 1.5 (1.0) 2.1 (1.2) 21 (260)
bbr       0.3  1.0 (0.8) 1.4 (1.1) 1.9 (1.3) 3.2 (1.5) 14 (390)
========= ==== ========= ========= ========= ========= =========
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT, Seconds, Size
from penstock.broker.extensions import DeliveryGate, LinkSampler, Plugin, PluginContext, Verdict
from penstock.broker.link import Link
from penstock.broker.message import DEFAULT_THRESHOLD_S, Message
from penstock.netem.oracle_file import TOLD, ToldLink, ToldState, read_told

EXPOSURE_SECONDS: Final = 2.0
"""The longest time for which a large message may occupy a connection while small ones wait,
seconds."""

MOST_HOLD_SECONDS: Final = 20.0
"""The longest time for which a message is held, seconds: the product's `max_withhold`."""

SEGMENT_BYTES: Final = 1_448
"""The payload of a segment of TCP over links of 1,500 bytes, with time stamps."""

BEARS_LOSS: Final = {"bbr": 0.17}
"""The greatest share of lost packets that a congestion control does not take for congestion. BBR
probes now and then with a rate a quarter higher. With more than a fifth of the packets lost,
none of that surplus arrives, and its rate sinks; from 18 % on, 1 MB takes seconds, or minutes."""

LOOK_SECONDS: Final = 0.5
"""The time between two looks at a link that other subscribers share."""


def throughput(loss: float, rtt: float) -> float:
    """Return what TCP gets through where packets are lost, bytes per second (RFC 5348, 3.1)."""
    timeout = 4 * rtt
    per_packet = rtt * math.sqrt(2 * loss / 3)
    per_packet += timeout * 3 * math.sqrt(3 * loss / 8) * loss * (1 + 32 * loss**2)
    return SEGMENT_BYTES / per_packet


def seconds_to_send(
    n_bytes: int, state: ToldState, congestion_control: str, sharing: int = 1
) -> float:
    """Return the time for which a message would occupy a link in its present state, seconds."""
    if state.loss >= 1:
        return math.inf
    carried = math.inf if state.rate is None else state.rate * (1 - state.loss) / sharing
    round_trips = 1.0
    if state.loss > BEARS_LOSS.get(congestion_control, 0.0) and state.rtt > 0:
        carried = min(carried, throughput(state.loss, state.rtt))
    elif state.loss > 0:
        round_trips = math.log(max(math.e, n_bytes / SEGMENT_BYTES)) / -math.log(state.loss)
    return n_bytes / carried + round_trips * state.rtt


class Unacknowledged(LinkSampler):
    """The unacknowledged large messages of each subscriber."""

    def __init__(self, threshold_s: int) -> None:
        self._threshold_s = threshold_s
        self._packet_ids: dict[Link, set[int]] = {}

    def clients(self) -> set[str]:
        """Return the Client Identifiers of those who have not acknowledged a large message."""
        return {link.client_id for link, packet_ids in self._packet_ids.items() if packet_ids}

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:  # noqa: ARG002
        """Remember a large one."""
        if payload_bytes > self._threshold_s:
            self._packet_ids.setdefault(link, set()).add(packet_id)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:  # noqa: ARG002
        """Forget it; the gate is asked again then."""
        packet_ids = self._packet_ids.get(link)
        if not packet_ids or packet_id not in packet_ids:
            return False
        packet_ids.remove(packet_id)
        return True

    def connected(self, link: Link, now: float) -> None:  # noqa: ARG002
        """Forget what an earlier connection has sent."""
        self._packet_ids.pop(link, None)

    def forget(self, link: Link) -> None:
        """Forget a subscriber."""
        self._packet_ids.pop(link, None)


@dataclass(frozen=True)
class OracleConfig:
    """The keys of `oracle` in a policy file.

    Attributes:
        told: the path of the file that the harness writes.
        exposure: the seconds for which a large message may occupy a link.
        max_withhold: the seconds after which a message is sent whatever the link's state is.
        threshold_s: the payload length above which a message is large, bytes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    told: str = TOLD
    exposure: Seconds = EXPOSURE_SECONDS
    max_withhold: Seconds = MOST_HOLD_SECONDS
    threshold_s: Size = DEFAULT_THRESHOLD_S


class OracleGate(DeliveryGate):
    """The gate, which decides by the states of links in the harness's file."""

    policy_name = "oracle"

    def __init__(self, config: OracleConfig, unacknowledged: Unacknowledged) -> None:
        self._config = config
        self._unacknowledged = unacknowledged
        self._told: dict[str, ToldLink] = {}

    def threshold_s(self, topic: str) -> int:  # noqa: ARG002
        """Return the size above which any message is large."""
        return self._config.threshold_s

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Hold what would occupy the link for too long, or one behind another."""
        most = self._config.max_withhold
        if sojourn > most:
            return Verdict(deliver=True, reason=f"withheld {sojourn:.4g} s", cause="bound")
        bound_at = now + most - sojourn + _AFTER_SECONDS
        busy = self._unacknowledged.clients()
        if link.client_id in busy:
            return Verdict(False, bound_at, "a large message is unacknowledged", "cost")
        told = self._told_of(link.client_id)
        state, ends_at = told.now(now) if told is not None else (None, math.inf)
        if told is None or state is None:
            return Verdict(deliver=True, reason="nothing told", cause="no_estimate")
        others = self._sharing(told.link, link.client_id, busy)
        seconds = seconds_to_send(
            message.payload_bytes, state, told.congestion_control, len(others) + 1
        )
        reason = f"takes {seconds:.4g} s"
        if seconds <= self._config.exposure:
            return Verdict(deliver=True, reason=reason, cause="calm")
        look_at = min(bound_at, ends_at + _AFTER_SECONDS)
        if others:
            look_at = min(look_at, now + LOOK_SECONDS)
        return Verdict(False, look_at, reason, "congested")

    def _told_of(self, client_id: str) -> ToldLink | None:
        """Return what is known of a subscriber's link; None before the harness has told it."""
        if not self._told:
            file = Path(self._config.told)
            if file.exists():
                self._told = read_told(file)
        return self._told.get(client_id)

    def _sharing(self, name: str, client_id: str, busy: Iterable[str]) -> list[str]:
        """Return the others that send a large message over a link now."""
        return [
            each
            for each in busy
            if each != client_id and (told := self._told.get(each)) and told.link == name
        ]


_AFTER_SECONDS: Final = 0.001
"""The time that is added to a time of release, seconds: exactly at that time the bound is not
exceeded yet."""


class OraclePlugin(Plugin):
    """The plugin `oracle` of a policy file."""

    Config = OracleConfig
    config: OracleConfig
    gate: OracleGate
    sampler: Unacknowledged

    def __init__(self, config: OracleConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.sampler = Unacknowledged(config.threshold_s)
        self.gate = OracleGate(config, self.sampler)
