"""``penstock pub`` and ``penstock sub``: an MQTT client for operators, with one lane or two.

``pub`` says in a user property when it published, and ``sub`` shows what has passed since then: the
latency, as exactly as the clocks of the two machines agree.
"""

from __future__ import annotations

import base64
import json
import queue
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from penstock.broker.config.command_line import CommandLine, exit_status, with_options
from penstock.broker.errors import MalformedPacketError, PenstockError
from penstock.broker.mqtt.topics import validate_topic_filter
from penstock.lanes.login import Login, MqttError, broker_address
from penstock.plugins.queue.wire.frames import PUBLISHED_AT_PROPERTY
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import duration, size

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.properties import Properties

pub, sub = CommandLine(), CommandLine()

DEFAULT_URL: Final = "mqtt://127.0.0.1:1883"

KEEP_ALIVE_SECONDS: Final = 60

PATIENCE_SECONDS: Final = 30.0
"""The broker's CONNACK may take so long."""

MOST_UNACKNOWLEDGED: Final = 20
"""So many messages are published at a time; others wait at their source."""

SHOWN_CHARACTERS: Final = 100
"""So much of a payload is shown in a line."""

LARGE_LANE_IDS: Final = 1 << 16
"""From here on the `mid` of a message is of the large lane; see `penstock.lanes.large_lane`. One of
QoS 0 has none."""


@dataclass(frozen=True, slots=True)
class BrokerOptions(Login):
    """Where the MQTT broker is, and who connects; its fields are options of each command."""

    url: Annotated[
        str, typer.Option(help="Address of the broker: mqtt://HOST:PORT, or mqtts:// with TLS.")
    ] = DEFAULT_URL
    client_id: Annotated[str, typer.Option(help="Client Identifier; a new one by default.")] = ""
    mqtt: Annotated[Literal["5", "3.1.1"], typer.Option(help="Version of MQTT.")] = "5"
    lanes: Annotated[
        bool, typer.Option("--lanes", help="Large messages use a connection of their own.")
    ] = False

    def client(self, **more: Any) -> Client:
        """Return a client that is not connected; `more` is for paho.

        Raises:
            PenstockError: the options do not fit together, or a file cannot be used.
        """
        import paho.mqtt.client as paho  # noqa: PLC0415 (an extra)
        from paho.mqtt.enums import CallbackAPIVersion  # noqa: PLC0415

        kind: type[Client] = paho.Client
        if self.lanes:
            from penstock.lanes.client import Client as LanesClient  # noqa: PLC0415

            if self.mqtt != "5":
                raise MqttError(f"--lanes: read --mqtt {self.mqtt}; allowed: --mqtt 5")
            kind = LanesClient
        protocol = paho.MQTTv5 if self.mqtt == "5" else paho.MQTTv311
        client = kind(
            CallbackAPIVersion.VERSION2, client_id=self.client_id, protocol=protocol, **more
        )
        self.prepare(client, broker_address(self.url)[0])
        return client

    def connect(self, client: Client) -> None:
        """Connect it.

        Raises:
            MqttError: nothing answers there.
        """
        _, host, port = broker_address(self.url)
        try:
            client.connect(host, port, KEEP_ALIVE_SECONDS)
        except OSError as error:
            raise MqttError(f"{self.url}: no answer ({error.strerror or error})") from error


QosOption: TypeAlias = Annotated[
    int, typer.Option("--qos", "-q", min=0, max=2, metavar="QOS", help="0, 1 or 2.")
]
UserProperties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--user-property", metavar="NAME=VALUE", help="Of MQTT 5; may be repeated."),
]
JsonLines: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a line of JSON each.")]


def _properties(options: BrokerOptions, packet: str, **values: Any) -> Properties | None:
    """Return properties of a packet; None for MQTT 3.1.1, and what is None is left out.

    Raises:
        MqttError: MQTT 3.1.1 has none, or a value is wrong.
    """
    given = {name: value for name, value in values.items() if value not in (None, [])}
    if options.mqtt != "5":
        if given:
            told = f"read {', '.join(given)} and --mqtt {options.mqtt}; allowed: --mqtt 5"
            raise MqttError(f"properties: {told}")
        return None
    from paho.mqtt import MQTTException  # noqa: PLC0415 (an extra)
    from paho.mqtt.packettypes import PacketTypes  # noqa: PLC0415
    from paho.mqtt.properties import Properties  # noqa: PLC0415

    kind: Any = Properties  # it has no types
    made: Properties = kind(getattr(PacketTypes, packet))
    for name, value in given.items():
        try:
            setattr(made, name, value)
        except MQTTException as error:
            raise MqttError(f"{name}: {error}") from error
    return made


def _pairs(texts: list[str] | None) -> list[tuple[str, str]]:
    """Return user properties.

    Raises:
        MqttError: one has another form.
    """
    for one in texts or []:
        if "=" not in one:
            raise MqttError(f"--user-property: read {one!r}; allowed: NAME=VALUE")
    return [(one.partition("=")[0], one.partition("=")[2]) for one in texts or []]


# -- sub ----------------------------------------------------------------------------------------


@sub.command(name="sub")
@with_options(BrokerOptions)
def subscribe(
    options: BrokerOptions,
    filters: Annotated[
        list[str], typer.Argument(metavar="FILTER...", help="Topic filters, such as cam/#.")
    ],
    qos: QosOption = 0,
    user_property: UserProperties = None,
    limit: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="End after so many messages.")
    ] = None,
    *,
    no_retained: Annotated[
        bool, typer.Option("--no-retained", help="No retained messages; MQTT 5.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Show messages: time, latency, size, QoS, topic and payload.

    The latency is known of messages of `penstock pub`, and of others with the user property
    penstock-published-at. With --lanes, each of QoS 1 and 2 has its lane.
    """
    from paho.mqtt.subscribeoptions import SubscribeOptions  # noqa: PLC0415 (an extra)

    for name in filters:
        try:
            validate_topic_filter(name)
        except MalformedPacketError as error:
            raise MqttError(f"FILTER: read {name!r}: {error.args[0]}") from error
    properties = _properties(options, "SUBSCRIBE", UserProperty=_pairs(user_property))
    if properties is None and no_retained:
        raise MqttError(f"--no-retained: read --mqtt {options.mqtt}; allowed: --mqtt 5")
    each: Any = qos
    if properties is not None:
        each = SubscribeOptions(qos, retainHandling=2 if no_retained else 0)
    wanted = [(name, each) for name in filters]
    Subscriber(options, wanted, properties, limit, as_json=as_json).run()


class Subscriber:
    """Shows messages until it is told to end."""

    def __init__(
        self,
        options: BrokerOptions,
        wanted: list[tuple[str, Any]],
        properties: Properties | None,
        limit: int | None,
        *,
        as_json: bool,
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._properties = properties
        self._left = limit
        self._as_json = as_json
        self._was_connected = self._is_leaving = False
        self._error: PenstockError | None = None
        self._client = options.client()
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    def run(self) -> None:
        """Show messages until there were enough, or Ctrl-C.

        Raises:
            MqttError: the broker cannot be reached, or refuses.
        """
        self._options.connect(self._client)
        with suppress(KeyboardInterrupt):
            self._client.loop_forever()
        if not self._is_leaving:
            self._leave()
            self._client.loop_write()
        if self._error is not None:
            raise self._error

    def _leave(self, refused: str = "") -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        self._error = MqttError(f"{self._options.url}: {printable(refused)}") if refused else None
        self._client.disconnect()

    def _on_connect(self, client: Client, _u: Any, _f: Any, code: Any, _p: Any) -> None:
        if code.is_failure:
            self._leave(f"refused: {code}")
            return
        self._was_connected = True
        client.subscribe(self._wanted, properties=self._properties)

    def _on_subscribe(self, _c: Any, _u: Any, _m: Any, codes: Any, _p: Any) -> None:
        for (name, _), code in zip(self._wanted, codes, strict=False):
            if code.is_failure:
                self._leave(f"topic filter {name}: refused: {code}")
                return
        typer.echo("subscribed; Ctrl-C ends it", err=True)

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, code: Any, _p: Any) -> None:
        if self._is_leaving:
            return
        if not self._was_connected:
            self._leave(f"closed before CONNACK ({code}); allowed: an MQTT broker")
            return
        typer.echo(f"connection lost ({code}); connecting again", err=True)

    def _on_message(self, _c: Any, _u: Any, message: MQTTMessage) -> None:
        if self._is_leaving:
            return
        lane = ""
        if self._options.lanes and message.qos:
            lane = "large" if message.mid >= LARGE_LANE_IDS else "small"
        seen = _seen(message, lane)
        typer.echo(json.dumps(seen) if self._as_json else _line(seen))
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._leave()


def _seen(message: MQTTMessage, lane: str) -> dict[str, Any]:
    """Return a message as it is printed in JSON."""
    at = time.time()
    named: dict[str, Any] = {}
    properties: Any = message.properties
    if properties is not None:
        given = properties.json()
        named = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one).lower(): given[one] for one in given}
    seen: dict[str, Any] = {"at": at, "topic": message.topic, "qos": message.qos}
    seen |= {"retain": message.retain, "bytes": len(message.payload), "latency_seconds": None}
    for name, value in named.get("user_property", ()):
        if name == PUBLISHED_AT_PROPERTY and not message.retain:
            with suppress(ValueError):
                seen["latency_seconds"] = at - float(value)
    if lane:
        seen["lane"] = lane
    try:
        seen["text"] = message.payload.decode()
    except UnicodeDecodeError:
        seen["base64"] = base64.b64encode(message.payload).decode()
    return seen | {"properties": named}


def _line(seen: dict[str, Any]) -> str:
    """Return the same as a line of text."""
    words = [*_columns(seen["at"], seen["latency_seconds"], seen["bytes"], seen["qos"])]
    words += [seen["lane"]] if "lane" in seen else []
    words += ["retained"] if seen["retain"] else []
    words.append(printable(seen["topic"]))
    shown = seen["text"] if "text" in seen else f"base64 {seen['base64']}"
    cut = "..." if len(shown) > SHOWN_CHARACTERS else ""
    return "  ".join([*words, printable(shown[:SHOWN_CHARACTERS]) + cut])


def _columns(at: float, seconds: float | None, n_bytes: int, qos: int) -> Iterator[str]:
    yield datetime.fromtimestamp(at).astimezone().isoformat(" ", "milliseconds")[11:23]
    yield duration(seconds).rjust(8)
    yield size(n_bytes).rjust(8)
    yield f"QoS {qos}"


# -- pub ----------------------------------------------------------------------------------------


@pub.command(name="pub")
@with_options(BrokerOptions)
def publish(
    options: BrokerOptions,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic Name.")],
    message: Annotated[
        str | None,
        typer.Argument(metavar="[MESSAGE]", help="Payload; by default each line of stdin is one."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="File with the payload; - for stdin.")
    ] = None,
    qos: QosOption = 0,
    count: Annotated[int, typer.Option("-n", min=1, metavar="N", help="Publish it so often.")] = 1,
    content_type: Annotated[str | None, typer.Option(help="Of MQTT 5.")] = None,
    expiry: Annotated[
        int | None, typer.Option(min=0, metavar="SECONDS", help="Message expiry, of MQTT 5.")
    ] = None,
    user_property: UserProperties = None,
    *,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Retain it.")] = False,
    as_json: JsonLines = False,
) -> None:
    """Publish messages, and show each with the time until its acknowledgement.

    At QoS 0 there is no acknowledgement. The status is 1 where the broker refuses a message.
    """
    if message is not None and file is not None:
        raise MqttError("MESSAGE: read MESSAGE and --file; allowed: one of them")
    payloads = _payloads(message, file, count)
    properties = _properties(
        options,
        "PUBLISH",
        ContentType=content_type,
        MessageExpiryInterval=expiry,
        UserProperty=_pairs(user_property),
    )
    publisher = Publisher(options, as_json=as_json)
    with suppress(KeyboardInterrupt):
        publisher.run(topic, payloads, qos, properties, retain=retain)
    if publisher.n_refused:
        raise typer.Exit(1)


def _payloads(message: str | None, file: str | None, count: int) -> Iterator[bytes]:
    """Return what is to be published.

    Raises:
        MqttError: the file cannot be read.
    """
    if message is None and file is None:
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer for _ in range(count))
    if message is not None:
        return repeat(message.encode(errors="surrogateescape"), count)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(str(file)).read_bytes()
    except OSError as error:
        raise MqttError(f"--file: {file}: {error.strerror or error}") from error
    return repeat(data, count)


class Publisher:
    """Publishes messages, a limited number at a time.

    Paho's thread hands over what happens; all else is on the thread that calls `run`.

    Attributes:
        n_refused: messages that the broker has refused.
    """

    def __init__(self, options: BrokerOptions, *, as_json: bool) -> None:
        self.n_refused = 0
        self._options = options
        self._as_json = as_json
        self._happened: queue.SimpleQueue[tuple[str, Any, Any, float]] = queue.SimpleQueue()
        self._open: dict[int, tuple[float, float, str, int, int]] = {}
        client = self._client = options.client(reconnect_on_failure=False)

        def note(kind: str) -> Any:
            def put(_c: Any, _u: Any, mid: Any, code: Any, _p: Any) -> None:
                self._happened.put((kind, mid, code, time.monotonic()))

            return put

        client.on_connect = note("connected")
        client.on_publish = note("published")
        client.on_disconnect = note("lost")

    def run(
        self,
        topic: str,
        payloads: Iterator[bytes],
        qos: int,
        properties: Properties | None,
        *,
        retain: bool,
    ) -> None:
        """Publish all, and wait until the broker has them.

        Raises:
            MqttError: the broker cannot be reached, refuses the connection, or it ends.
        """
        self._options.connect(self._client)
        self._client.loop_start()
        try:
            self._settle(PATIENCE_SECONDS)
            given = list(getattr(properties, "UserProperty", ()))
            for payload in payloads:
                at = time.time()
                if properties is not None:
                    properties = copy(properties)  # the one before may be still to be sent
                    stamp = PUBLISHED_AT_PROPERTY, f"{at:.6f}"
                    vars(properties)["UserProperty"] = [*given, stamp]
                began = time.monotonic()
                info = self._publish(topic, payload, qos, properties, retain=retain)
                self._open[info.mid] = began, at, topic, len(payload), qos
                while len(self._open) >= MOST_UNACKNOWLEDGED or not self._happened.empty():
                    self._settle()
            while self._open:
                self._settle()
        finally:
            self._client.disconnect()
            self._client.loop_stop()

    def _publish(self, topic: str, payload: bytes, *more: Any, retain: bool) -> Any:
        qos, properties = more
        try:
            return self._client.publish(topic, payload, qos, retain, properties)
        except ValueError as error:
            raise MqttError(f"TOPIC: read {topic!r}: {error}") from error

    def _settle(self, seconds: float | None = None) -> None:
        """Wait for what happens next, and print what the broker has."""
        try:
            kind, mid, code, at = self._happened.get(timeout=seconds)
        except queue.Empty:
            raise MqttError(f"{self._options.url}: no CONNACK in {seconds:g} s") from None
        url, told = self._options.url, printable(str(code))
        if kind == "lost":
            n_open = len(self._open)
            lost = f"not acknowledged: {n_open:,}" if n_open else "allowed: an MQTT broker"
            raise MqttError(f"{url}: the connection ended ({told}); {lost}")
        if kind == "connected":
            if code.is_failure:
                raise MqttError(f"{url}: refused: {told}")
            return
        began, wall, topic, n_bytes, qos = self._open.pop(mid)
        if code.is_failure:
            self.n_refused += 1
            typer.echo(f"penstock pub: {printable(topic)}: refused: {told}", err=True)
            return
        taken = at - began if qos else None
        if self._as_json:
            row = {"at": wall, "topic": topic, "qos": qos, "bytes": n_bytes}
            typer.echo(json.dumps(row | {"acknowledged_seconds": taken}))
        else:
            typer.echo("  ".join([*_columns(wall, taken, n_bytes, qos), printable(topic)]))


pub_main = partial(exit_status, pub, "penstock pub")
sub_main = partial(exit_status, sub, "penstock sub")
