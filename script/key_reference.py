"""The program that writes docs/reference/keys.md: every key of a policy file and a proxy's file.

Rerun: ``python -m script.key_reference`` after a key has changed; a test compares both. A key's
meaning is its line under ``Attributes`` in the docstring of the class that reads it, and its
default is the field's: neither is written a second time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.broker.config.key_types import show_size
from penstock.broker.config.limits import Limits
from penstock.broker.config.listener_config import ListenerKeys
from penstock.broker.config.log_options import LogOptions
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.config.policy import Persistence, PolicyKeys
from penstock.broker.counters import attributes_of
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.edge_proxy.sidecar.config import ProxyKeys, ProxyLimits
from penstock.edge_proxy.uplink.config import BacklogKeys, ReconnectKeys, UplinkConfig, UplinkKeys
from penstock.edge_proxy.uplink.lanes import LanesKeys
from penstock.edge_proxy.uplink.remapping import DownRule, Rule
from penstock.edge_proxy.uplink.schedule_and_budget import StartKeys, TimesKeys, Window
from penstock.edge_proxy.upstream_config import UpstreamKeys, UpstreamTlsKeys
from penstock.plugins.access.config import AccessConfig
from penstock.plugins.cluster.config import ClusterConfig
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.queue.config import (
    GroupConfig,
    LogicalQueueConfig,
    PublishingConfig,
    QueueConfig,
    QueueHttpLimits,
    QueueRedisConfig,
)
from penstock.plugins.redis.config import RedisConfig
from penstock.plugins.trace.config import TraceConfig
from penstock.plugins.web.limits import HttpLimits, HttpTls
from penstock.plugins.withholding.config import WithholdingConfig

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "keys.md"

_UPLINK: Final = "plugins.uplink.uplinks.NAME"

POLICY: Final[Mapping[str, type[Any]]] = {
    "": PolicyKeys,
    "listeners.NAME": ListenerKeys,
    "limits": Limits,
    "mqtt": MqttOptions,
    "persistence": Persistence,
    "log": LogOptions,
    "cluster": ClusterConfig,
    "cluster.redis": RedisConfig,
    "plugins.access": AccessConfig,
    "plugins.probing": ProbingConfig,
    "plugins.withholding": WithholdingConfig,
    "plugins.memory": MemoryConfig,
    "plugins.trace": TraceConfig,
    "plugins.console": ConsoleConfig,
    "plugins.console.http_tls": HttpTls,
    "plugins.console.http_limits": HttpLimits,
    "plugins.queue": QueueConfig,
    "plugins.queue.http_limits": QueueHttpLimits,
    "plugins.queue.redis": QueueRedisConfig,
    "plugins.queue.publishing": PublishingConfig,
    "plugins.queue.queues.NAME": LogicalQueueConfig,
    "plugins.queue.queues.NAME.groups.NAME": GroupConfig,
    "plugins.parts": PartsConfig,
    "plugins.uplink": UplinkConfig,
    _UPLINK: UplinkKeys,
    f"{_UPLINK}.upstream": UpstreamKeys,
    f"{_UPLINK}.upstream.tls": UpstreamTlsKeys,
    f"{_UPLINK}.reconnect": ReconnectKeys,
    f"{_UPLINK}.backlog": BacklogKeys,
    f"{_UPLINK}.start": StartKeys,
    f"{_UPLINK}.times": TimesKeys,
    f"{_UPLINK}.times.windows, each": Window,
    f"{_UPLINK}.lanes": LanesKeys,
    f"{_UPLINK}.up, each rule": Rule,
    f"{_UPLINK}.down, each rule": DownRule,
}
"""The place of the keys of each class in a policy file, in the order of the page."""

PROXY: Final[Mapping[str, type[Any]]] = {"": ProxyKeys, "limits": ProxyLimits}
"""The places in a proxy's file that a policy file does not have."""

_HEAD: Final = """\
# Keys

`python -m script.key_reference` writes this page from the code. A size is a number of bytes, or
a text with a unit: 64 KiB is 65,536 bytes, 10 MB are 10,000,000. A key without a default must be
given. Where nothing else is said, null stands for none, no limit, or what system or client choose.
A file's path is relative to the directory in which the program was started. Codes such as 0x97 are
reason codes of MQTT 5. A wrong key or value ends the start.
"""

_PROXY_HEAD: Final = """\
Its `listeners`, `log` and `plugins` have the keys of a policy file, and `upstream` those of an
uplink.
"""


def default_of(field: Field[Any]) -> Any:
    """Return the default of a key behind what pydantic wraps it in; MISSING where it has none."""
    wrapped = field.default if field.default is not MISSING else field
    factory = getattr(wrapped, "default_factory", None)
    if factory is None or factory is MISSING:
        return getattr(field.default, "default", field.default)
    return factory()


def _plain(value: Any) -> Any:
    """Return a value as YAML has it; a section with its defaults is an empty mapping."""
    if is_dataclass(value):
        return {}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def shown(field: Field[Any]) -> str:
    """Return the default of a key as a file has it; empty where it must be given."""
    default = default_of(field)
    if default is MISSING or repr(default) == "PydanticUndefined":
        return ""
    if type(default) is int and "Size" in str(field.type) and default >= 1000:
        return f"`{show_size(default).replace('.0 ', ' ')}`"
    text = yaml.safe_dump(_plain(default), default_flow_style=True, width=1000).strip()
    return f"`{text.removesuffix('...').strip()}`"


def table(cls: type[Any], known: Mapping[type[Any], str]) -> Iterator[str]:
    """Yield the lines of one section's table, without the keys of a section that it extends.

    Raises:
        KeyError: a key has no line under ``Attributes``.
    """
    extended = next((one for one in cls.__mro__[1:] if one in known), None)
    if extended is not None:
        yield from (f"The keys of `{known[extended]}`, and:", "")
    yield "| Key | Default | |"
    yield "| --- | --- | --- |"
    meanings = attributes_of(cls)
    for field in fields(cls):
        if extended is not None and field.name in {one.name for one in fields(extended)}:
            continue
        meaning = meanings[field.name].replace("``", "`").replace("|", "\\|")
        meaning = meaning.replace(" (None in Python)", "").replace("None", "null")
        yield f"| `{field.name}` | {shown(field)} | {meaning[0].upper()}{meaning[1:]} |"


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for head, sections in (
        ("## A policy file\n", POLICY),
        (f"## A proxy's file\n\n{_PROXY_HEAD}", PROXY),
    ):
        lines.append(head)
        known: dict[type[Any], str] = {}
        for place, cls in sections.items():
            if place:
                lines += [f"### `{place}`", ""]
            lines += [*table(cls, known), ""]
            known[cls] = place
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Write the page; the arguments are those of the process where none are given."""
    argparse.ArgumentParser("python -m script.key_reference", description=__doc__).parse_args(argv)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
