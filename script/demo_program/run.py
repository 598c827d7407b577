"""The demo from its first program to its last figure."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.netem.errors import NetemError
from penstock.netem.links.profiles import PROFILES
from penstock.netem.runs.broker_process import find_program
from script.demo_program.books import compare
from script.demo_program.clients import PICTURES, TELEMETRY
from script.demo_program.display import Display
from script.demo_program.errors import DemoError
from script.demo_program.ingestion import Spark, queued_numbers, take_pictures
from script.demo_program.pictures import Painter
from script.demo_program.policy import EXAMPLE, Places, default_policy, derive, free_ports
from script.demo_program.programs import Program, Programs
from script.demo_program.report import TWO_LANES, WITHHOLDING, WITHOUT, Result, SideResult, too_slow
from script.demo_program.schedule import Schedule
from script.demo_program.side import Side
from script.demo_program.telemetry import Sampler, host_name

PORTS: Final = {WITHOUT: 18840, WITHHOLDING: 18830, TWO_LANES: 18850}
"""The preferred ports for the brokers' MQTT, each with the next one for HTTP; others where these
are taken."""

BALANCER: Final = """\
defaults
    mode tcp
    timeout connect 1m
    timeout client 1h
    timeout server 1h
"""
"""The configuration of HAProxy, without the brokers."""

START_SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.02
STUCK_SECONDS: Final = 60.0
"""The time without an arriving message after which missing messages count as lost."""

MARK: Final = ".penstock-demo"
"""The file that marks a folder as the demo's; without it, nothing in a folder is deleted."""

HISTORY_TICKS: Final = 60
WARM_UP_LOOKS: Final = 10
WARM_UP_SECONDS: Final = 0.1
"""The time between two samples before the demo begins, so that the first picture has some
values."""

PICTURE_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's options.

    Attributes:
        folder: the folder for all files of the demo; emptied first.
        with_spark: whether Spark reads the queue; without it, the demo reads it itself.
        congestion_control: the congestion control of the brokers' connections; None for the
            machine's.
        with_balancer: whether HAProxy stands between the brokers and the link.
    """

    folder: Path
    seconds: float
    with_spark: bool = True
    congestion_control: str | None = None
    with_balancer: bool = False


def run(wishes: Wishes, display: Display) -> tuple[Result, Places]:
    """Run the demo, and end all its programs.

    Returns:
        The results, and the places of the broker with withholding.

    Raises:
        DemoError: it could not be run to its end.
    """
    began_at = time.monotonic()
    empty(wishes.folder)
    with ExitStack() as stack:
        programs = stack.enter_context(Programs(wishes.folder))
        painter = Painter()
        stack.callback(painter.close)
        policy = default_policy(EXAMPLE.read_text())
        display.say(f"starting three brokers: one withholds (policy: {policy}), two do not")
        places = start_brokers(programs, wishes)
        main = places[WITHHOLDING]
        ports = [place.mqtt_port for place in places.values()]
        if wishes.with_balancer:
            ports = start_balancer(programs, wishes.folder, ports)
        link, slow_ports = start_link(programs, ports)
        spark = Spark(programs, main, wishes.folder) if wishes.with_spark else None
        sides = []
        for (name, place), port in zip(places.items(), slow_ports, strict=True):
            sides.append(Side.connect(name, place, port, has_lanes=name == TWO_LANES))
            stack.callback(sides[-1].close)
        if spark is not None:
            display.say("starting Spark, which follows the queue into Parquet")
            display.show("waiting for Spark", 0.0, sides)
            spark.wait_until_started()
        demo = _Demo(wishes, display, programs, painter, link, sides)
        demo.publish()
        demo.wait_for_arrivals()
        return demo.result(spark, began_at), main


def empty(folder: Path) -> None:
    """Make the folder, without what an earlier demo has left there.

    Raises:
        DemoError: it holds something else, or a broker of an earlier demo still runs in it.
    """
    if folder.exists():
        for lock_file in folder.glob("*.lock"):
            with lock_file.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pid = lock.read().strip()
                    raise DemoError(
                        f"{folder}: the broker of an earlier demo still runs there, as process "
                        f"{pid}; end it first: kill {pid}",
                        2,
                    ) from None
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise DemoError(f"{folder}: holds what is not the demo's; name another --output", 2)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def start_brokers(programs: Programs, wishes: Wishes) -> dict[str, Places]:
    """Write the policy files and start the brokers; return where they are, by side."""
    folder, example = wishes.folder, EXAMPLE.read_text()
    ports = iter(free_ports([port + n for port in PORTS.values() for n in (0, 1)]))
    places, started = {}, []
    for side in PORTS:
        word = side.replace(" ", "-")
        of_side = "" if side == WITHHOLDING else f"{word}-"
        places[side] = place = Places(
            folder / f"{of_side}policy.yaml",
            next(ports),
            next(ports),
            folder / f"{of_side}queue.db",
            folder / f"{of_side}sessions.db",
        )
        text = derive(
            example,
            place,
            policy=None if side == WITHHOLDING else "none",
            congestion_control=wishes.congestion_control,
        )
        place.policy_file.write_text(text)
        started.append(programs.start(f"{of_side}broker", "broker", "-c", str(place.policy_file)))
    for program in started:
        program.wait_for("listening on", START_SECONDS)
    return places


def start_balancer(programs: Programs, folder: Path, brokers: Sequence[int]) -> list[int]:
    """Start HAProxy before some ports of loopback; return the ports at which it listens.

    Raises:
        DemoError: there is no HAProxy, or it does not start.
    """
    try:
        haproxy = find_program("haproxy")
    except NetemError as error:
        raise DemoError(f"--haproxy: {error}", 2) from error
    ports = free_ports([0 for _ in brokers])
    text = BALANCER
    for port, broker in zip(ports, brokers, strict=True):
        text += f"listen {port}\n    bind 127.0.0.1:{port}\n    server one 127.0.0.1:{broker}\n"
    configuration = folder / "haproxy.cfg"
    configuration.write_text(text)
    program = programs.start_command("haproxy", haproxy, "-db", "-f", str(configuration))
    deadline = time.monotonic() + START_SECONDS
    for port in ports:
        while not _is_open(port):
            program.check()
            if time.monotonic() > deadline:
                raise program.failure(f"does not listen within {START_SECONDS:.0f} s")
            time.sleep(PAUSE_SECONDS)
    return ports


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def start_link(programs: Programs, ports: Sequence[int]) -> tuple[Program, list[int]]:
    """Start a slow link to each port of loopback; return them and the ports where they begin."""
    targets = [f"127.0.0.1:{port}" for port in ports]
    link = programs.start("slow link", "penstock.netem.links.relay", *targets, "--profile", "good")
    lines = [link.wait_for(f"for {target}", START_SECONDS) for target in targets]
    return link, [int(line.split()[2].rpartition(":")[2]) for line in lines]


class _Demo:
    """The steps while messages flow, and the comparison after them."""

    def __init__(
        self,
        wishes: Wishes,
        display: Display,
        programs: Programs,
        painter: Painter,
        link: Program,
        sides: Sequence[Side],
    ) -> None:
        self._wishes = wishes
        self._display = display
        self._programs = programs
        self._painter = painter
        self._link = link
        self._sides = sides
        self._host = host_name()
        self._sampler = Sampler()
        self._history: list[dict[str, float]] = []
        self._schedule = Schedule(wishes.seconds)
        self._began_at = 0.0
        self._n_small = 0
        self._n_pictures = 0

    def publish(self) -> None:
        """Publish by the schedule, to all brokers the same at the same time."""
        schedule = self._schedule
        for _ in range(WARM_UP_LOOKS):
            self._look()
            time.sleep(WARM_UP_SECONDS)
        newest = self._paint().result(PICTURE_PATIENCE_SECONDS)  # learns the resolution
        picture = self._paint()
        profile, turned_bad = "good", None
        self._began_at = time.monotonic()
        self._display.say(f"publishing; the link is {PROFILES[profile]}")
        ticks, slots = schedule.ticks(), schedule.picture_slots()
        next_tick, next_slot = next(ticks), next(slots)
        while (elapsed := time.monotonic() - self._began_at) < schedule.seconds:
            if profile != schedule.profile(elapsed):
                profile = schedule.profile(elapsed)
                self._link.tell(profile)
                turned_bad = elapsed if turned_bad is None else turned_bad
                self._display.say(f"the link is {PROFILES[profile]}")
            if elapsed >= next_tick:
                self._publish_telemetry()
                next_tick = next(ticks)
            if elapsed >= next_slot and schedule.is_time_for_picture(elapsed, turned_bad):
                while next_slot <= elapsed:
                    next_slot = next(slots)
                if picture.done():  # on a slow machine, the one before goes again
                    newest = picture.result()
                    picture = self._paint()
                self._publish_picture(newest)
            doing = f"{elapsed:.0f} of {schedule.seconds:.0f} s; the link is {PROFILES[profile]}"
            self._display.show(doing, elapsed / schedule.seconds, self._sides)
            self._programs.check()
            time.sleep(PAUSE_SECONDS)

    def _look(self) -> list[tuple[str, bytes]]:
        """Look at the machine; return (topic, payload) of each message to publish."""
        samples = self._sampler.sample()
        self._history.append({one.metric: one.value for one in samples if one.pid is None})
        del self._history[:-HISTORY_TICKS]
        messages = []
        for number, one in enumerate(samples, self._n_small + 1):
            topic = f"{TELEMETRY}/{self._host}/{one.metric}"
            messages.append((topic, one.payload(self._host, number)))
        return messages

    def _publish_telemetry(self) -> None:
        for topic, payload in self._look():
            self._n_small += 1
            for side in self._sides:
                side.publisher.publish_small(self._n_small, topic, payload)

    def _paint(self) -> Future[bytes]:
        shown = set(self._history[0]).intersection(*self._history)
        series = {metric: [tick[metric] for tick in self._history] for metric in shown}
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        return self._painter.paint(series, f"{self._host}, {at}")

    def _publish_picture(self, payload: bytes) -> None:
        self._n_pictures += 1
        topic = f"{PICTURES}/{self._host}/{self._n_pictures}"
        digest = hashlib.sha256(payload).hexdigest()
        for side in self._sides:
            side.digests[topic] = digest
            side.publisher.publish_picture(topic, payload)

    def wait_for_arrivals(self) -> None:
        """Wait until everything has arrived everywhere, or nothing moves any more."""
        self._display.say("published; waiting for what is still on its way")
        moved_at, before = time.monotonic(), 0
        while not all(side.is_complete() for side in self._sides):
            progress = sum(side.progress() for side in self._sides)
            if progress != before:
                moved_at, before = time.monotonic(), progress
            elif time.monotonic() - moved_at > STUCK_SECONDS:
                return
            whole = sum(3 * side.n_published for side in self._sides)
            self._display.show("waiting for arrivals", progress / whole, self._sides)
            self._programs.check()
            time.sleep(PAUSE_SECONDS)

    def result(self, spark: Spark | None, began_at: float) -> Result:
        """Read all books and compare them."""
        problems = [problem for side in self._sides for problem in side.problems()]
        results = [self._side_result(side, problems) for side in self._sides]
        (main,) = (side for side in self._sides if side.name == WITHHOLDING)
        small, pictures = main.acknowledged()
        self._display.say("taking the pictures out of their queue")
        taken = take_pictures(main.places, self._wishes.folder / "pictures")
        in_queue = compare(pictures, (topic for topic, _ in taken))
        problems += in_queue.problems("queue pictures", PICTURES, once=True)
        problems += [f"{topic}: not what was sent" for topic in _harmed(taken, main.digests)]
        ingested = windows = None
        if spark is not None:
            self._display.say("letting Spark finish")
            ingested = spark.finish()
            windows = spark.windows()
            there = compare(small, spark.numbers())
            problems += there.problems("Parquet", TELEMETRY, once=True)
        else:
            there = compare(small, queued_numbers(main.places))
            problems += there.problems("queue telemetry", TELEMETRY, once=True)
        schedule = self._schedule
        return Result(
            sides=results,
            taken=len(taken),
            ingested=ingested,
            windows=windows,
            bad=(schedule.bad_from, schedule.bad_until),
            pictures_at=[at - self._began_at for at in main.publisher.pictures_at.values()],
            problems=problems,
            too_slow=too_slow(results),
            seconds=time.monotonic() - began_at,
        )

    def _side_result(self, side: Side, problems: list[str]) -> SideResult:
        ledger, sinks = side.settled_books()
        if not ledger.is_settled:
            problems.append(f"{side.name}: the ledger does not balance: {ledger}")
        for name, sink in sinks.items():
            if not sink.is_balanced or sink.dropped:
                problems.append(f"{side.name}: queue {name} has dropped or lost: {sink}")
        small, pictures = side.acknowledged()
        figures = side.reader.figures()
        begin = self._began_at
        bad = begin + self._schedule.bad_from, begin + self._schedule.bad_until
        return SideResult(
            name=side.name,
            sent=(len(small), len(pictures)),
            delivered=(side.direct.n_received, side.slow.n_received),
            withheld=figures.get("withholding/withheld_total", 0),
            released=figures.get("withholding/released_total", 0),
            ledger=ledger,
            sinks=sinks,
            in_bad=side.percentiles(*bad),
            whole=side.percentiles(begin, begin + self._schedule.seconds),
            pictures=side.picture_percentiles(),
            latencies=[(at - begin, latency) for at, latency in side.latencies()],
        )


def _harmed(taken: Sequence[tuple[str, str]], digests: dict[str, str]) -> list[str]:
    return [topic for topic, digest in taken if digests.get(topic) != digest]
