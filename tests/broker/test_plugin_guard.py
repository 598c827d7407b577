from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.access_control import Accepted
from penstock.broker.config.limits import Limits
from penstock.broker.events import Callbacks
from penstock.broker.extensions import (
    DeliveryGate,
    LinkSampler,
    MessageSink,
    PayloadStore,
    SinkCounts,
)
from penstock.broker.mqtt.packets import Connect, Will
from penstock.broker.payload import STORED_ABOVE_BYTES
from penstock.broker.plugin_guard import Guard, is_logged, note_fault
from penstock.broker.plugin_loader import LoadedPlugins
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.reports.sampling import Sampling
from penstock.broker.reports.sys_topics import SysTopics
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = bytes(STORED_ABOVE_BYTES + 1)


def test_faults_are_counted_each_and_logged_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first whole, then each time the number has doubled, by the name of what failed."""
    by_name: dict[str, int] = {}
    for _ in range(7):
        note_fault(logging.getLogger("test"), by_name, "part", ValueError("odd"), kind="extension ")
    assert by_name == {"part": 7}
    assert caplog.messages == [
        "extension part failed: ValueError('odd')",
        "extension part failed 2 times: ValueError('odd')",
        "extension part failed 4 times: ValueError('odd')",
    ]
    assert caplog.records[0].exc_info is not None


def test_what_the_system_refuses_is_logged_without_the_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A missing file descriptor is no fault of the program."""
    note_fault(logging.getLogger("test"), {}, "look", OSError(24, "Too many open files", "/x"))
    assert caplog.messages == ["look failed: [Errno 24] Too many open files: '/x'"]
    assert not caplog.records[0].exc_info


def fail(*_: Any, **__: Any) -> Any:
    """Raise, as a plugin with a fault does."""
    raise ValueError("odd")


def raising(*methods: str, bases: tuple[type, ...] = (object,), **values: Any) -> Any:
    """Return an object of a class named Raiser of which these methods raise."""
    return type("Raiser", bases, dict.fromkeys(methods, fail) | values)()


def gate(*methods: str, **values: Any) -> dict[str, Any]:
    """Return a gate that raises in these methods, for a broker."""
    return {"gate": raising(*methods, bases=(DeliveryGate,), **values)}


def all_large(_gate: object, _topic: str) -> int:
    """Return the threshold above which all messages are large."""
    return 0


def sampler(*methods: str) -> dict[str, Any]:
    """Return a sampler that raises in these methods, for a broker."""
    return {"samplers": [raising(*methods, bases=(LinkSampler,), period=1.0)]}


def store(*methods: str, **values: Any) -> dict[str, Any]:
    """Return a payload store that raises in these methods, for a broker."""
    return {"payload_store": raising(*methods, bases=(PayloadStore,), **values)}


def sink(*methods: str, **values: Any) -> dict[str, Any]:
    """Return a sink that raises in these methods, for a broker."""
    values |= {"name": "Raiser", "topic_filters": ("t",), "counts": SinkCounts()}
    return {"sinks": [raising(*methods, bases=(MessageSink,), **values)]}


class Unreadable:
    """A payload that cannot be read back, for a fault and not for the disk."""

    def __len__(self) -> int:
        return len(LARGE)

    read = read_piece = fail


def access(**values: Any) -> dict[str, Any]:
    """Return access control for a broker, with some of its methods replaced."""
    source = Access()
    for name, value in values.items():
        setattr(source, name, value)
    return {"access": source}


def one_message(broker: VirtualBroker, qos: int = 1, payload: bytes = LARGE) -> None:
    """Connect a subscriber, publish a message for it and end its session."""
    subscriber = broker.connect("s")
    subscriber.subscribe("t", qos)
    broker.connect("p").publish("t", payload, qos=qos)
    subscriber.acknowledge()
    subscriber.lose()


def connect_only(broker: VirtualBroker) -> None:
    """Let a client try to connect."""
    VirtualClient(broker).send(Connect(client_id="c"))


def subscribe_only(broker: VirtualBroker) -> None:
    """Let a client connect and subscribe."""
    broker.connect("c").subscribe("t")


def authenticate(broker: VirtualBroker) -> None:
    """Let a client try to authenticate by the method of the test."""
    method = {"authentication_method": "M"}
    VirtualClient(broker).send(Connect(client_id="c", properties=method))


def sample(broker: VirtualBroker) -> None:
    """Let a sampling period pass for a subscriber."""
    client = broker.connect("s")
    client.subscribe("t")
    Sampling(broker.core, broker.core.samplers[0], 1.0).start(broker.now)
    broker.advance(1.5)


def look_again(broker: VirtualBroker) -> None:
    """Let a session's link change."""
    broker.connect("s")
    broker.session("s").link_changed()


def leave_will(broker: VirtualBroker) -> None:
    """Lose a client with a will."""
    broker.connect("w", will=Will("t", LARGE)).lose()


def report_client(broker: VirtualBroker) -> None:
    """Report a client to whoever asks."""
    broker.connect("s")
    report(subject_of(broker.session("s")), broker.now)


def report_all(broker: VirtualBroker) -> None:
    """Publish the figures of the broker."""
    SysTopics(broker.core, "1", broker.now, has_common=True).start(broker.now, 1)
    broker.advance(3)


Act = Callable[[VirtualBroker], None]

EXTENSIONS: list[tuple[str, dict[str, Any], Act, str]] = [
    ("gate: threshold_s", gate("threshold_s"), one_message, "Raiser"),
    ("gate: decide", gate("decide", threshold_s=all_large), one_message, "Raiser"),
    ("gate: forget", gate("forget"), one_message, "Raiser"),
    ("gate: observe", gate("observe"), look_again, "Raiser"),
    ("gate: is_first", gate("is_first", threshold_s=all_large), one_message, "Raiser"),
    ("gate: threshold_l", gate("threshold_l"), report_client, "Raiser"),
    ("gate: connected", gate("connected"), subscribe_only, "Raiser"),
    ("gate: is_large", gate("is_large", threshold_s=all_large), one_message, "Raiser"),
    ("sampler: connected", sampler("connected"), subscribe_only, "Raiser"),
    ("sampler: sent", sampler("sent"), one_message, "Raiser"),
    (
        "sampler: sent, past the outbox",
        sampler("sent"),
        lambda broker: one_message(broker, payload=b""),
        "Raiser",
    ),
    ("sampler: acknowledged", sampler("acknowledged"), one_message, "Raiser"),
    ("sampler: forget", sampler("forget"), one_message, "Raiser"),
    ("sampler: sample", sampler("sample"), sample, "Raiser"),
    ("store: keep", store("keep"), one_message, "Raiser"),
    ("store: keep, of a will", store("keep"), leave_will, "Raiser"),
    ("store: read", store(keep=lambda *_: Unreadable()), one_message, "Raiser"),
    ("store: copy", store("copy"), one_message, "Raiser"),
    ("store: figures", store("figures"), report_all, "Raiser"),
    ("sink: accept", sink("accept"), one_message, "Raiser"),
    ("sink: reserve", sink("reserve", accept=lambda *_: None), one_message, "Raiser"),
    ("access control: authenticate", access(authenticate=fail), connect_only, "authenticate"),
    ("access control: authorize", access(authorize=fail), one_message, "publish"),
    ("access control: holds", access(answer=Accepted(holds=fail)), connect_only, "holds"),
    (
        "authenticator: start",
        {"authenticators": [raising("start", method="M")]},
        authenticate,
        "authenticator M",
    ),
    (
        "authenticator: step",
        {"authenticators": [raising(method="M", start=lambda *_: raising("step"))]},
        authenticate,
        "authenticator M",
    ),
    (
        "callback",
        {"callbacks": Callbacks(message_received=(fail,))},
        one_message,
        "fail on MessageReceived",
    ),
]


@pytest.mark.parametrize(
    ("extensions", "act", "name"), [pytest.param(*row[1:], id=row[0]) for row in EXTENSIONS]
)
def test_each_kind_of_extension_that_raises_is_logged_and_counted_in_one_way(
    extensions: dict[str, Any], act: Act, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E3: by its name, and the first time with the code; no connection closes for it."""
    broker = VirtualBroker(Limits(), **extensions)
    act(broker)
    broker.finish_waiting()
    found = broker.core.counters.extension_errors
    assert any(key.endswith(name) for key in found)
    assert all(key.endswith((name, "subscribe")) for key in found)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len([record for record in told if record.exc_info]) == len(found)
    assert all(record.getMessage().startswith("extension ") for record in told)
    assert {f"extension {key} failed: ValueError('odd')" for key in found} <= set(caplog.messages)


def test_a_plugin_that_does_not_close_keeps_no_other_from_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its fault is logged and counted as any other."""
    closed: list[str] = []

    async def close(_: object) -> None:
        closed.append("whole")

    plugins = LoadedPlugins(plugins=(raising("close"), raising(close=close)))
    errors: dict[str, int] = {}
    asyncio.run(plugins.close(Guard(logging.getLogger("test"), errors)))
    assert (closed, errors) == (["whole"], {"Raiser": 1})
    assert caplog.messages == ["extension Raiser failed: ValueError('odd')"]


@pytest.mark.parametrize(("first", "logged"), [(1, [1, 2, 4, 8, 16]), (5, [1, 2, 3, 4, 5, 8, 16])])
def test_of_like_cases_the_first_are_logged_and_each_doubling(
    first: int, logged: list[int]
) -> None:
    """A flood writes few lines, and each says how large it has become."""
    assert [number for number in range(1, 20) if is_logged(number, first=first)] == logged
