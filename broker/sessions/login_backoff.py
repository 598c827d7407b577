"""Backoff against guessed passwords: a client that failed to log in too often must wait.

Theory of operation. An attempt that comes too early is refused before any plugin is asked or any
hash is computed. Refusing it changes nothing: a device that tries again and again does not prolong
its own wait. Failures are counted in three ways, each by an address (of IPv6, a /64 network), which
a proxy's header may have given:

* By *pair* of address and user name. After `limits.login_failures` wrong passwords a pair waits 1
  s, and twice as long after each further one. The user's other addresses are not affected, so that
  an attacker cannot lock a user out.
* By *address*, over all its user names. An address starts with `login_failures_per_address`
  failures in hand and regains one a second. A pair that has logged in before does not wait for the
  failures of others behind the same address.
* By *user name*, over all addresses, in the same way with `login_failures_per_user`. When none is
  left, the user is being attacked from many addresses. An address from which this user has not
  logged in before then has one attempt instead of `login_failures`; with the right password one is
  enough.

The same wrong password again is no new guess: a device that is set up wrongly, or one of many whose
password has changed, does not lock out others at its address or of its user. It is checked once in
`REPEAT_SECONDS` and refused in between.

The memory is bounded: keys are hashes, whatever the length of a name, and the oldest records are
evicted first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker.config.addresses import address_key

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits

MAX_RECORDS: Final = 16_384
"""Pairs, addresses and user names with failures that are remembered, of each kind."""

MAX_GOOD: Final = 65_536
"""Pairs that have logged in and are remembered; some 100 bytes each."""

MAX_WRONG: Final = 4
"""Wrong passwords of a pair that are remembered."""

REPEAT_SECONDS: Final = 10.0
"""Seconds after which a wrong password is checked again, as it may have become the right one."""

FORGET_RATIO: Final = 10
"""Failures of a pair are forgotten after this many of its longest waits without a further failure.
An attacker who waits that long each time gains no guesses."""

_PER_SECOND: Final = 1.0
"""Failures that an address and a user name regain."""

_Record = TypeVar("_Record")


@dataclass(slots=True)
class _Pair:
    """The failures of one address with one user name.

    Attributes:
        failures: count, without repetitions of a known wrong password.
        until: monotonic seconds before which no attempt is checked.
        failed_at: monotonic seconds of the newest failure.
        wrong: hash of a wrong password to when it was last checked, the oldest first.
    """

    failures: int = 0
    until: float = -math.inf
    failed_at: float = -math.inf
    wrong: dict[int, float] = field(default_factory=dict)


class _InHand:
    """A token bucket of failures of an address or user name; below 0 after concurrent failures."""

    __slots__ = ("_at", "_most", "_n")

    def __init__(self, most: int, now: float) -> None:
        self._most = self._n = float(most)
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until one failure is in hand."""
        n_failures = min(self._most, self._n + (now - self._at) * _PER_SECOND)
        return max(0.0, (1.0 - n_failures) / _PER_SECOND)

    def take(self, now: float) -> None:
        """Count a failure."""
        self._n = min(self._most, self._n + (now - self._at) * _PER_SECOND) - 1.0
        self._at = now


@dataclass(slots=True)
class Attempt:
    """One login, from its start to `LoginBackoff.failed` or `succeeded`.

    Attributes:
        backoff: that has begun it.
        address: hash of the client's address.
        user: hash of its user name.
        pair: hash of both.
        failures: of the pair when the attempt began.
        wait: seconds after which an attempt would be checked; 0.0 where this one is.
        is_known_wrong: the same password was wrong a moment ago and need not be checked.
    """

    backoff: LoginBackoff
    address: int
    user: int
    pair: int
    failures: int
    wait: float = 0.0
    is_known_wrong: bool = False

    def is_wanted(self) -> bool:
        """Say whether it is still to be checked: others of its pair or address may have failed."""
        return self.backoff.is_wanted(self)


class LoginBackoff:
    """Counts failed logins, and decides which attempts must wait.

    Invariant: it keeps at most `MAX_RECORDS` of each kind and `MAX_GOOD` pairs that have logged in.
    """

    def __init__(self, limits: Limits) -> None:
        """Begin without any failure; a limit that is None is none."""
        self.change(limits)
        self._pairs: OrderedDict[int, _Pair] = OrderedDict()
        self._addresses: OrderedDict[int, _InHand] = OrderedDict()
        self._users: OrderedDict[int, _InHand] = OrderedDict()
        self._good: OrderedDict[int, None] = OrderedDict()
        self._now = -math.inf

    def change(self, limits: Limits) -> None:
        """Have other limits, as at the beginning; what was counted stays."""
        self._per_pair = limits.login_failures
        self._per_address = limits.login_failures_per_address
        self._per_user = limits.login_failures_per_user
        self._longest = limits.login_backoff_seconds

    def begin(
        self, address: str, username: str | None, password: bytes | None, now: float
    ) -> Attempt | None:
        """Begin a login of a client at an address, which is "" where it has none.

        The user name is None where it is not known yet, the password where none is sent in clear.

        Returns:
            None for a client without an address, which is not counted.
        """
        if not address:
            return None
        now = self._now = max(now, self._now)
        address = address_key(address)
        key = hash((address, username))
        pair = self._pairs.get(key)
        failures = 0 if pair is None else pair.failures
        attempt = Attempt(self, hash(address), hash(username), key, failures)
        if pair is not None and password is not None:
            judged_at = pair.wrong.get(hash(password), -math.inf)
            attempt.is_known_wrong = now - judged_at < REPEAT_SECONDS
        if not attempt.is_known_wrong:
            attempt.wait = self._address_wait(attempt)
            if pair is not None:
                attempt.wait = max(attempt.wait, pair.until - now)
                if not attempt.wait and pair.until > -math.inf:
                    pair.until = now + self._pair_wait(attempt, pair)  # one attempt at a time
        return attempt

    def _address_wait(self, attempt: Attempt) -> float:
        """Return for how many seconds an attempt must wait because of its address."""
        address = self._addresses.get(attempt.address)
        if address is None or attempt.pair in self._good:
            return 0.0
        return address.wait(self._now)

    def is_wanted(self, attempt: Attempt) -> bool:
        """Say whether an attempt that `begin` let pass is still to be checked."""
        pair = self._pairs.get(attempt.pair)
        if pair is not None and pair.failures > attempt.failures and pair.until > self._now:
            return False
        return not self._address_wait(attempt)

    def succeeded(self, attempt: Attempt) -> None:
        """Note that a client has logged in; wrong passwords of other clients stay known."""
        pair = self._pairs.get(attempt.pair)
        if pair is not None:
            pair.failures = 0
            pair.until = -math.inf
        _keep(self._good, attempt.pair, None, MAX_GOOD)

    def failed(self, attempt: Attempt, password: bytes | None, now: float) -> float:
        """Note that a client was refused, whose attempt `begin` has let pass.

        Returns:
            Seconds for which the pair must wait from now on.
        """
        now = self._now = max(now, self._now)
        pair = self._pairs.get(attempt.pair)
        if pair is None or now - pair.failed_at > FORGET_RATIO * self._longest:
            pair = _Pair()
        _keep(self._pairs, attempt.pair, pair, MAX_RECORDS)
        is_known = password is not None and self._note_wrong(pair, hash(password), now)
        if not is_known:
            pair.failures += 1
            pair.failed_at = now
            _take(self._addresses, attempt.address, self._per_address, now)
            _take(self._users, attempt.user, self._per_user, now)
        if pair.failures < self._free(attempt, now):
            return 0.0
        wait = self._pair_wait(attempt, pair)
        pair.until = now + wait
        return wait

    def _note_wrong(self, pair: _Pair, digest: int, now: float) -> bool:
        """Keep a wrong password's hash; return whether it was known."""
        is_known = pair.wrong.pop(digest, None) is not None
        pair.wrong[digest] = now
        if len(pair.wrong) > MAX_WRONG:
            del pair.wrong[next(iter(pair.wrong))]
        return is_known

    def _is_attacked(self, attempt: Attempt, now: float) -> bool:
        """Return whether a user is attacked from many addresses and this pair never logged in."""
        user = self._users.get(attempt.user)
        return user is not None and bool(user.wait(now)) and attempt.pair not in self._good

    def _free(self, attempt: Attempt, now: float) -> float:
        """Return the number of failures from which a pair must wait."""
        if self._is_attacked(attempt, now):
            return 1
        return math.inf if self._per_pair is None else self._per_pair

    def _pair_wait(self, attempt: Attempt, pair: _Pair) -> float:
        """Return how long a pair must wait after its newest failure, in seconds."""
        if self._is_attacked(attempt, self._now) or self._per_pair is None:
            return self._longest
        return min(self._longest, 2.0 ** min(pair.failures - self._per_pair, 64))

    def forget_wrong(self) -> None:
        """Check every password again: the password files were reloaded."""
        for pair in self._pairs.values():
            pair.wrong.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError where an invariant of the class does not hold."""
        sizes = (len(self._pairs), len(self._addresses), len(self._users))
        n_wrong = max((len(pair.wrong) for pair in self._pairs.values()), default=0)
        if max(sizes) > MAX_RECORDS or len(self._good) > MAX_GOOD or n_wrong > MAX_WRONG:
            raise AssertionError(f"kept: {sizes}, {len(self._good)} good, {n_wrong} wrong")


def _keep(records: OrderedDict[int, _Record], key: int, record: _Record, most: int) -> None:
    """Keep a record as the newest; evict the oldest if there are too many."""
    records[key] = record
    records.move_to_end(key)
    if len(records) > most:
        records.popitem(last=False)


def _take(records: OrderedDict[int, _InHand], key: int, most: int | None, now: float) -> None:
    if most is None:
        return
    in_hand = records.get(key) or _InHand(most, now)
    in_hand.take(now)
    _keep(records, key, in_hand, MAX_RECORDS)
