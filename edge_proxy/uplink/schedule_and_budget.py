"""When an uplink may stand, and how fast it may send.

Three conditions: something has to wait for the cloud (`Demand`), the time of day has to lie in a
window (`Schedule`), and what goes up has to fit into a number of bytes per second (`Budget`).

The time of day comes from the wall clock, which may jump, and which summer time shifts. So a
schedule only says what holds at a time and when to look again, and its reader looks at least once a
minute. All else counts on the monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT, Positive, Rate, Seconds

LOOK_SECONDS: Final = 60.0
"""A schedule is looked at so often: a clock that was set counts from then on."""

OUTSIDE: Final = "it is outside of its times"

BURST_SECONDS: Final = 1.0
"""What a budget saves up: the bytes of one second."""

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])|24:00")
_DAY_MINUTES: Final = 24 * 60
_HOUR_MINUTES: Final = 60


def _read_time(value: Any) -> Any:
    """Return minutes since midnight; YAML reads an unquoted 22:30 as 1350, which they are."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not _HOUR_MINUTES <= value <= _DAY_MINUTES:
            raise ValueError('a time of day in quotes, such as "08:30"')
        return value
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a time of day from "00:00" to "24:00"')
    hours, minutes = found.groups()
    return _DAY_MINUTES if hours is None else int(hours) * _HOUR_MINUTES + int(minutes)


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class Window:
    """A part of the day in which an uplink may stand.

    Attributes:
        begin: time of day, such as ``"22:00"``.
        end: the same; where it is not later than `begin`, it is of the next day.
        days: on which it begins.
        max_bytes_per_second: of what goes up; None for no limit.
    """

    begin: int = 0
    end: int = _DAY_MINUTES
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = _DAYS
    max_bytes_per_second: Rate | None = None

    @field_validator("begin", "end", mode="before")
    @classmethod
    def _read_times(cls, value: Any) -> Any:
        return _read_time(value)

    @field_validator("days", mode="before")
    @classmethod
    def _read_days(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def __post_init__(self) -> None:
        """Check that a limit lets something pass."""
        if self.max_bytes_per_second is not None and self.max_bytes_per_second < 1:
            raise ValueError("max_bytes_per_second of 1 or more")
        if not self.days:
            raise ValueError(f"days of {', '.join(_DAYS)}")


def read_zone(name: str | None) -> tzinfo | None:
    """Return a time zone by its name, such as ``Europe/Berlin``; None for that of the machine.

    Raises:
        ValueError: there is none of that name; says what is allowed.
    """
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise ValueError("the name of a time zone that this machine has, as UTC") from error


class Opening(NamedTuple):
    """What a schedule says of a time.

    Attributes:
        is_open: the uplink may stand.
        max_bytes_per_second: of what goes up; None for no limit.
        look_again_seconds: after which this may be another; `LOOK_SECONDS` at most.
    """

    is_open: bool
    max_bytes_per_second: float | None
    look_again_seconds: float


class Schedule:
    """The windows of an uplink; without any, it may always stand."""

    def __init__(self, windows: Sequence[Window], zone: tzinfo | None) -> None:
        self._windows = tuple(windows)
        self._zone = zone

    def at(self, wall: float) -> Opening:
        """Say what holds at a time: of several windows, the first that is open decides.

        Args:
            wall: seconds of the wall clock since 1970.
        """
        if not self._windows:
            return Opening(True, None, LOOK_SECONDS)
        today = self._local(wall).date()
        look_again = LOOK_SECONDS
        found: Window | None = None
        for window in self._windows:
            for begin, end in self._times(window, datetime(today.year, today.month, today.day)):  # noqa: DTZ001 (the zone is put to it there)
                for change in (begin, end):
                    if wall < change:
                        look_again = min(look_again, change - wall)
                if begin <= wall < end and found is None:
                    found = window
        rate = None if found is None else found.max_bytes_per_second
        return Opening(found is not None, rate, look_again)

    def _local(self, wall: float) -> datetime:
        at = datetime.fromtimestamp(wall, UTC)
        return at.astimezone(self._zone)

    def _times(self, window: Window, today: datetime) -> Iterator[tuple[float, float]]:
        """Yield (begin, end) of a window in wall clock seconds, around a day."""
        for n_days in (-1, 0, 1):
            day = today + timedelta(days=n_days)
            if _DAYS[day.weekday()] not in window.days:
                continue
            end = window.end if window.end > window.begin else window.end + _DAY_MINUTES
            yield self._wall(day, window.begin), self._wall(day, end)

    def _wall(self, day: datetime, minutes: int) -> float:
        """Return the seconds of a time of day; a time that summer time skips is the next one."""
        at = day + timedelta(minutes=minutes)
        return (at if self._zone is None else at.replace(tzinfo=self._zone)).timestamp()


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class StartKeys:
    """What makes an uplink connect; the keys under `start`.

    Attributes:
        when: ``always``; ``on_demand``: only while messages wait to go up; or ``never``. What is
            to come down waits in the cloud until then.
        threshold_messages: with ``on_demand``: so many that wait make it connect.
        idle_seconds: with ``on_demand``: it disconnects after so long without a message.
    """

    when: Literal["always", "on_demand", "never"] = "always"
    threshold_messages: Positive = 10
    idle_seconds: Seconds = 60.0


class Absence:
    """For how long an uplink has not been connected, and why."""

    def __init__(self, clock: Callable[[], float], told: str) -> None:
        self._clock = clock
        self._since = clock()
        self._told = told
        self._next_at = self._since

    def begins(self) -> None:
        """It is connected, or has just ceased to be."""
        self._since = self._clock()

    def lasts(self, told: str, next_in_seconds: float = 0.0) -> None:
        """It goes on, for a reason, until the next attempt."""
        self._told = told
        self._next_at = self._clock() + next_in_seconds

    def in_words(self) -> str:
        """Return duration and reason, and when the next attempt is made."""
        now = self._clock()
        told = f"for {now - self._since:.0f} s: {self._told}"
        if self._next_at > now:
            told += f"; the next attempt in {self._next_at - now:.1f} s"
        return told


class Demand:
    """Whether anything makes an uplink stand.

    Attributes:
        keys: by which it decides.
    """

    def __init__(self, keys: StartKeys) -> None:
        self.keys = keys
        self._passed_at = 0.0
        self._n_passed = -1

    @property
    def lacks(self) -> str:
        """What makes it connect, in words, where `wants_start` says that it does not."""
        if self.keys.when == "never":
            return "it is held: start.when is never"
        n_messages = self.keys.threshold_messages
        waits = "message waits" if n_messages == 1 else "messages wait"
        return f"it connects when {n_messages} {waits} to go up"

    def wants_start(self, n_waiting: int) -> bool:
        """Say whether the uplink is to connect, with so many messages that wait to go up."""
        keys = self.keys
        if keys.when == "on_demand":
            return n_waiting >= keys.threshold_messages
        return keys.when == "always"

    def stop_in_seconds(self, n_passed: int, n_waiting: int, now: float) -> float | None:
        """Say when the uplink is to disconnect, if nothing happens until then.

        Args:
            n_passed: messages that have passed so far, either way; counts on over connections.
            n_waiting: messages that wait to go up, are unacknowledged, or have come down in part.
            now: monotonic seconds.

        Returns:
            Seconds, 0.0 for now; None for never.
        """
        if self.keys.when == "always":
            return None
        if n_passed != self._n_passed or n_waiting:
            self._n_passed = n_passed
            self._passed_at = now
        return max(0.0, self._passed_at + self.keys.idle_seconds - now)


class Budget:
    """A token bucket: the bytes that may go up.

    It may be overdrawn, as no packet is cut: what was sent is paid before anything else leaves.

    Attributes:
        bytes_per_second: None for no limit.
    """

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._tokens = 0.0
        self._at = 0.0

    def set_rate(self, bytes_per_second: float | None, now: float) -> None:
        """Let another rate hold from now on; debts and savings stay, as far as the rate saves."""
        if bytes_per_second == self.bytes_per_second:
            return
        self._fill(now)
        was_free = self.bytes_per_second is None
        self.bytes_per_second = bytes_per_second
        if bytes_per_second is not None:
            most = bytes_per_second * BURST_SECONDS
            self._tokens = most if was_free else min(self._tokens, most)

    def spend(self, n_bytes: int, now: float) -> None:
        """Count bytes that were sent."""
        if self.bytes_per_second is not None:
            self._fill(now)
            self._tokens -= n_bytes

    def wait_seconds(self, now: float) -> float:
        """Return after how many seconds something may be sent, if nothing is sent before."""
        rate = self.bytes_per_second
        if rate is None:
            return 0.0
        self._fill(now)
        return max(0.0, -self._tokens / rate)

    def _fill(self, now: float) -> None:
        if self.bytes_per_second is not None:
            rate = self.bytes_per_second
            self._tokens = min(rate * BURST_SECONDS, self._tokens + rate * max(0.0, now - self._at))
        self._at = max(now, self._at)


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class TimesKeys:
    """At which times of the day an uplink may stand; the keys under `times`.

    Attributes:
        time_zone: of the windows, such as ``Europe/Berlin``; None for that of the machine.
        windows: the first that is open decides; without any, the uplink may always stand.
    """

    time_zone: str | None = None
    windows: list[Window] = field(default_factory=list)

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, time_zone: str | None) -> str | None:
        read_zone(time_zone)
        return time_zone

    def schedule(self) -> Schedule:
        """Return what decides by these keys."""
        return Schedule(self.windows, read_zone(self.time_zone))
