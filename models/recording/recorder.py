"""The recorder of a running broker, which uses one MQTT connection like any other client.

Theory of operation. Penstock publishes the state of each client's path below ``$SYS``, once in each
`sys_interval`, and at once when somebody subscribes to one client's topic. The recorder learns the
clients and their subscriptions from ``clients/+/subscriptions``. At each look it subscribes anew to
``clients/ID/link`` of each client, which makes the broker publish the present state. It subscribes
to messages like any client, at QoS 0, so that no message is refused because the recorder has no
room. Back-pressure on fast publishers counts it as a subscriber.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.broker.errors import PeerError, PenstockError
from penstock.broker.mqtt.topics import validate_topic_filter
from penstock.lanes.login import Login, broker_address
from penstock.models.recording.rows import (
    FigureRow,
    FullError,
    MessageRow,
    RttRow,
    SubscriptionRow,
    Take,
    Writer,
)

SYS: Final = "$SYS/broker/"
CLIENTS: Final = f"{SYS}penstock/clients/"
TIMEOUT_SECONDS: Final = 10.0
"""How long the recorder waits for the broker's first answer."""
FILTERS_A_PACKET: Final = 50
STEP_SECONDS: Final = 0.2
"""The longest wait for a packet before the clock is looked at."""
KEEP_ALIVE_SECONDS: Final = 60
HASH_BYTES: Final = 6
MOST_BYTES: Final = 100_000_000
"""The most bytes that are recorded for a plan."""


class RecordError(PenstockError):
    """An error: the broker is out of reach or hides what the recorder needs; status 2."""


@dataclass(frozen=True, slots=True)
class RecordingChoice:
    """The choice of what is recorded.

    Attributes:
        topics: the topic filters of the recorded messages; empty for no messages.
        look_seconds: the time between two looks at the path of each client.
        most_clients: the most clients that are looked at.
        hides_names: whether client identifiers and topic levels are replaced by names that do not
            identify them.
    """

    topics: tuple[str, ...] = ("#",)
    look_seconds: float = 1.0
    most_clients: int = 100
    hides_names: bool = False


class Recorder:
    """One recording."""

    def __init__(self, url: str, login: Login, wanted: RecordingChoice, take: Take) -> None:
        """Prepare the connection.

        Raises:
            PenstockError: the URL, a topic filter or a file is not usable.
        """
        self._url = url
        self._wanted = wanted
        self._take = take
        self._salt = secrets.token_bytes(16)
        self._client_id = f"penstock-record-{os.getpid()}-{secrets.token_hex(3)}"
        self._filters: dict[str, set[str]] = {}
        self._refused: list[str] = []
        self._asked: dict[int, list[str]] = {}
        self._refusal = ""
        self._is_connected = False
        self._failure: BaseException | None = None
        self._began_at = 0.0
        for name in wanted.topics:
            try:
                validate_topic_filter(name)
            except PeerError as error:
                raise RecordError(f"--topics: {error}") from error
        scheme, self._host, self._port = broker_address(url)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, self._client_id, protocol=mqtt.MQTTv5
        )
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._disconnected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._came
        login.prepare(self._client, scheme)

    @property
    def n_clients(self) -> int:
        """Clients that were seen."""
        return len(self._filters)

    def open(self) -> None:
        """Connect.

        Raises:
            RecordError: no connection can be made.
        """
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0
        try:
            self._client.connect(
                self._host, self._port, KEEP_ALIVE_SECONDS, clean_start=True, properties=properties
            )
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{self._url}: no connection ({error}); allowed: the address of a running broker"
            ) from error
        give_up_at = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_connected and not self._refusal and time.monotonic() < give_up_at:
            if self._client.loop(STEP_SECONDS) != mqtt.MQTT_ERR_SUCCESS:
                break
        if not self._is_connected:
            raise RecordError(
                f"{self._url}: the broker does not let a client in: {self._refusal or 'no answer'}"
            )

    def run(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Record over the open connection, until an exception or the end of the time.

        Raises:
            RecordError: the broker lets nothing be read.
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            self._began_at = time.monotonic()
            self._ask()
            tell(f"recording {self._url}; Ctrl-C ends it")
            self._follow(self._began_at + seconds, tell)
        finally:
            self._client.disconnect()

    def _follow(self, end_at: float, tell: Callable[[str], None]) -> None:
        look_at = self._began_at
        while (now := time.monotonic()) < end_at:
            if not self._is_connected:
                tell(f"lost the connection to {self._url}; trying again")
                self._reopen(end_at)
                look_at = time.monotonic()
                continue
            if now >= look_at:
                self._look()
                look_at = max(look_at + self._wanted.look_seconds, now)
            self._step(min(STEP_SECONDS, max(0.0, min(look_at, end_at) - now)))

    def _step(self, seconds: float) -> None:
        """Handle what comes within this time."""
        if self._client.loop(max(seconds, 0.001)) != mqtt.MQTT_ERR_SUCCESS:
            self._is_connected = False
        if self._failure is not None:
            raise self._failure
        if self._refused:
            refused = ", ".join(self._refused)
            raise RecordError(
                f"{self._url}: the broker refuses to be asked for {refused}; allowed: a"
                " user who may read these topics, or other --topics"
            )

    def _reopen(self, end_at: float) -> None:
        """Connect again, once a second until it works or the time is over."""
        self._refusal = ""
        while time.monotonic() < end_at:
            try:
                self.open()
                return self._ask()
            except RecordError:
                time.sleep(min(1.0, max(0.0, end_at - time.monotonic())))
        return None

    def _ask(self) -> None:
        """Subscribe to all that comes without a look."""
        self._subscribe([f"{SYS}#", f"{CLIENTS}+/subscriptions", *self._wanted.topics])

    def _look(self) -> None:
        """Ask for the paths of clients now."""
        looked = list(self._filters)[: self._wanted.most_clients]
        for start in range(0, len(looked), FILTERS_A_PACKET):
            some = looked[start : start + FILTERS_A_PACKET]
            self._subscribe([f"{CLIENTS}{level}/link" for level in some])

    def _subscribe(self, topic_filters: list[str]) -> None:
        """Subscribe to messages as they come; only those of `$SYS` are sent as retained."""
        asked = []
        for name in topic_filters:
            is_ours = name.startswith(SYS)
            options = SubscribeOptions(
                qos=0, retainHandling=0 if is_ours else 2, retainAsPublished=False
            )
            asked.append((name, options))
        _, packet_id = self._client.subscribe(asked)
        if packet_id is not None:
            self._asked[packet_id] = topic_filters

    def _connected(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        if code.is_failure:
            self._refusal = str(code)
            return
        self._is_connected = True

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        self._is_connected = False
        self._refusal = self._refusal or str(code)

    def _subscribed(self, _client: Any, _data: Any, packet_id: int, codes: Any, _more: Any) -> None:
        for name, code in zip(self._asked.pop(packet_id, ()), codes, strict=False):
            if code.is_failure:
                self._refused.append(name)

    def _came(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        if self._failure is not None:
            return
        try:
            self._note(message)
        except BaseException as error:  # noqa: BLE001 - paho would log it and go on
            self._failure = error

    def _note(self, message: mqtt.MQTTMessage) -> None:
        now = max(0.0, time.monotonic() - self._began_at)
        topic = message.topic
        if topic.startswith(CLIENTS):
            level, _, what = topic.removeprefix(CLIENTS).partition("/")
            if unquote(level) != self._client_id:
                self._note_client(now, level, what, json.loads(message.payload))
        elif topic.startswith(SYS):
            value = message.payload.decode(errors="replace")
            self._take(FigureRow(now, topic.removeprefix(SYS), value))
        elif not topic.startswith("$"):
            expiry = getattr(message.properties, "MessageExpiryInterval", None)
            name = self._shown_topic(topic)
            self._take(MessageRow(now, name, len(message.payload), expiry))

    def _note_client(self, now: float, level: str, what: str, found: dict[str, Any]) -> None:
        client = self._shown(unquote(level))
        if what == "subscriptions":
            known = self._filters.get(level)
            if known is None:
                known = self._filters[level] = set()
                if not found["filters"]:
                    self._take(SubscriptionRow(now, client, None))
            for name in found["filters"]:
                if name not in known:
                    known.add(name)
                    self._take(SubscriptionRow(now, client, self._shown_topic(_unshared(name))))
            return
        if what != "link":
            return
        tcp = found["tcp"] or {}
        self._take(
            RttRow(
                now,
                client,
                found["is_connected"],
                found["rtt_latest"],
                found["rtt_bytes"],
                found["outstanding_age_seconds"],
                found["outstanding_bytes"],
                found["threshold_l"],
                tcp.get("delivery_rate_bytes_per_second"),
                tcp.get("is_app_limited"),
                tcp.get("retransmit_ratio"),
            )
        )

    def _shown(self, name: str) -> str:
        """Return a name, or what stands for it in this recording alone."""
        if not self._wanted.hides_names:
            return name
        digest = hashlib.blake2b(name.encode(), key=self._salt, digest_size=HASH_BYTES)
        return digest.hexdigest()

    def _shown_topic(self, topic: str) -> str:
        levels = topic.split("/")
        return "/".join(each if each in {"", "+", "#"} else self._shown(each) for each in levels)


def record_into(
    folder: Path,
    url: str,
    login: Login,
    topics: tuple[str, ...],
    seconds: float,
    tell: Callable[[str], None],
) -> None:
    """Record a broker for some time.

    Raises:
        PenstockError: the broker cannot be recorded.
        OSError: the folder cannot be written.
    """
    writer: Writer | None = None
    recorder = Recorder(
        url, login, RecordingChoice(topics), lambda row: writer.take(row) if writer else None
    )
    recorder.open()
    writer = Writer(folder, MOST_BYTES)
    try:
        recorder.run(seconds, tell)
    except FullError:
        tell("enough was recorded")
    finally:
        writer.close()


def _unshared(topic_filter: str) -> str:
    """Return the topic filter of a subscription, which may be shared."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[2]
    return topic_filter
