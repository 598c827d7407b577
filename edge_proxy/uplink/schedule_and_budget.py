"""Conditions under which an uplink is connected, and how fast it sends.

`Demand` says whether anything asks for a connection, `Schedule` whether the time of day allows it,
and `Budget` whether more bytes may go up now.

The time of day comes from the wall clock, which may be set, and which summer time shifts. So a
schedule only says what holds at a time and when to ask again; the caller asks at least once a
minute. Everything else uses the monotonic clock.
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
"""Longest time between two looks at a schedule, after which a clock that was set takes effect."""

OUTSIDE: Final = "it is outside of its times"

BURST_SECONDS: Final = 1.0
"""A budget saves up the bytes of so many seconds."""

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])|24:00")
_DAY_MINUTES: Final = 24 * 60
_HOUR_MINUTES: Final = 60


def _read_time(value: Any) -> Any:
    """Return minutes since midnight. YAML reads an unquoted 22:30 as 1350, which is the same."""
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
    """A part of the day in which an uplink may be connected.

    Attributes:
        begin: time of day, such as ``"22:00"``.
        end: time of day, of the next day where it is not later than `begin`.
        days: days of the week on which the window begins.
        max_bytes_per_second: limit of what goes up.
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
    """Return a time zone by its name; None for that of the machine."""
    try:
        return None if name is None else ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise ValueError("the name of a time zone that this machine has, as UTC") from error


class Opening(NamedTuple):
    """What a schedule says of a point in time.

    Attributes:
        max_bytes_per_second: limit of what goes up; None for no limit.
        look_again_seconds: after so long this may have changed; `LOOK_SECONDS` at most.
    """

    is_open: bool
    max_bytes_per_second: float | None
    look_again_seconds: float


class Schedule:
    """The windows of an uplink; without any, it may always be connected."""

    def __init__(self, windows: Sequence[Window], zone: tzinfo | None) -> None:
        self._windows = tuple(windows)
        self._zone = zone

    def at(self, wall: float) -> Opening:
        """Say what holds at a time, in seconds since 1970. The first open window decides."""
        if not self._windows:
            return Opening(True, None, LOOK_SECONDS)
        today = self._local(wall).date()
        look_again = LOOK_SECONDS
        found: Window | None = None
        for window in self._windows:
            for begin, end in self._times(window, datetime(today.year, today.month, today.day)):  # noqa: DTZ001 (`_wall` adds the zone)
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
        """Return a time of day in seconds since 1970; one that summer time skips is the next."""
        at = day + timedelta(minutes=minutes)
        return (at if self._zone is None else at.replace(tzinfo=self._zone)).timestamp()


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class StartKeys:
    """What makes an uplink connect; the keys under `start`.

    Attributes:
        when: ``always``, ``on_demand`` (while messages wait to go up) or ``never``. What is to come
            down waits in the cloud meanwhile.
        threshold_messages: with ``on_demand``, messages that must wait before it connects.
        idle_seconds: with ``on_demand``, time without a message until it disconnects.
    """

    when: Literal["always", "on_demand", "never"] = "always"
    threshold_messages: Positive = 10
    idle_seconds: Seconds = 60.0


class Absence:
    """Tells for how long an uplink has not been connected, and why."""

    def __init__(self, clock: Callable[[], float], told: str) -> None:
        self._clock = clock
        self._since = clock()
        self._told = told
        self._next_at = self._since

    def begins(self) -> None:
        """Note that the uplink is connected, or that the connection has just ended."""
        self._since = self._clock()

    def lasts(self, told: str, next_in_seconds: float = 0.0) -> None:
        """Note why the uplink is not connected, and when the next attempt follows."""
        self._told = told
        self._next_at = self._clock() + next_in_seconds

    @property
    def seconds(self) -> float:
        """Time since the uplink connected, or since its connection ended."""
        return self._clock() - self._since

    def in_words(self) -> str:
        """Return duration and reason, and when the next attempt is made."""
        now = self._clock()
        told = f"for {now - self._since:.0f} s: {self._told}"
        if self._next_at > now:
            told += f"; the next attempt in {self._next_at - now:.1f} s"
        return told


class Demand:
    """Decides by the keys under `start` whether an uplink is to be connected."""

    def __init__(self, keys: StartKeys) -> None:
        self.keys = keys
        self._passed_at = 0.0
        self._n_passed = -1

    @property
    def lacks(self) -> str:
        """What would make it connect, in words, where `wants_start` is False."""
        if self.keys.when == "never":
            return "it is held: start.when is never"
        n_messages = self.keys.threshold_messages
        waits = "message waits" if n_messages == 1 else "messages wait"
        return f"it connects when {n_messages} {waits} to go up"

    def wants_start(self, n_waiting: int) -> bool:
        """Say whether the uplink is to connect while so many messages wait to go up."""
        keys = self.keys
        if keys.when == "on_demand":
            return n_waiting >= keys.threshold_messages
        return keys.when == "always"

    def stop_in_seconds(self, n_passed: int, n_waiting: int, now: float) -> float | None:
        """Return in how many seconds an uplink without traffic disconnects; None for never."""
        if self.keys.when == "always":
            return None
        if n_passed != self._n_passed or n_waiting:
            self._n_passed = n_passed
            self._passed_at = now
        return max(0.0, self._passed_at + self.keys.idle_seconds - now)


class Budget:
    """A token bucket for the bytes that go up.

    It may be overdrawn, as no packet is cut. Nothing more is sent until the debt is paid.

    Attributes:
        bytes_per_second: the rate; None for no limit.
    """

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._tokens = 0.0
        self._at = 0.0

    def set_rate(self, bytes_per_second: float | None, now: float) -> None:
        """Change the rate; debts stay, and savings as far as the new rate allows."""
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
        """Return in how many seconds something may be sent, if nothing is sent before."""
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
    """Times of the day at which an uplink may be connected; the keys under `times`.

    Attributes:
        time_zone: of the windows, such as ``Europe/Berlin``.
        windows: the first open one decides; without any, it may always be connected.
    """

    time_zone: str | None = None
    windows: list[Window] = field(default_factory=list)

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, time_zone: str | None) -> str | None:
        read_zone(time_zone)
        return time_zone

    def schedule(self) -> Schedule:
        """Return the schedule of these keys."""
        return Schedule(self.windows, read_zone(self.time_zone))
