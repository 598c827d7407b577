"""Who may import whom: the arrows between packages and the layers inside broker/.

This table is the rule; a new module of the broker is given its layer here, and a new module of
a plugin counts as pure unless it is named here as one that does I/O.
"""

from __future__ import annotations

from typing import Final

LAYERS: Final = (
    # L0 wire: pure bytes and packets.
    frozenset({"addresses", "errors", "proxy_header", "revocation", "mqtt"}),
    # L1 contract: what extensions may see.
    frozenset(
        {
            "access_control",
            "client_report",
            "config",
            "config_file",
            "events",
            "extensions",
            "faults",
            "limits",
            "link",
            "listener_config",
            "log_lines",
            "message",
            "metrics",
            "mqtt_options",
            "payload",
            "persistence_config",
            "records",
        }
    ),
    # L2 core: sessions, outboxes, routing.
    frozenset(
        {
            "access",
            "acknowledging",
            "admission",
            "authenticating",
            "backlog",
            "breaking_off",
            "bridges",
            "capabilities",
            "connecting",
            "connection",
            "core",
            "counters",
            "delivery",
            "eager",
            "fitting",
            "handlers",
            "held",
            "inflight",
            "journal",
            "ledger",
            "login_backoff",
            "lone_packets",
            "message_run",
            "outbox",
            "outbox_rules",
            "priority_outbox",
            "probes",
            "outgoing",
            "outgoing_properties",
            "publishing",
            "receipts",
            "received_bytes",
            "rate_limit",
            "redelivery",
            "reporting",
            "restoring",
            "retained",
            "retained_delivery",
            "rounds",
            "room",
            "routing",
            "router",
            "runs",
            "scanning",
            "sending",
            "session",
            "session_journal",
            "session_quota",
            "session_registry",
            "shared_subscriptions",
            "succession",
            "throttle",
            "timers",
            "topic_aliases",
            "topic_tree",
            "wills",
        }
    ),
    # L3 I/O and assembly.
    frozenset(
        {
            "__main__",
            "amqtt_host",
            "arrival",
            "client_log",
            "client_topics",
            "collector",
            "driver",
            "import_mosquitto",
            "lingering",
            "listeners",
            "machine_memory",
            "local_only",
            "open_files",
            "persistence",
            "plugin_loader",
            "program",
            "sampling",
            "server",
            "database_file",
            "session_database",
            "spare_memory",
            "sys_topics",
            "tcp_options",
            "tls",
            "transport",
            "websocket",
        }
    ),
)
"""Modules of broker/ by layer; a folder stands for all modules in it."""

CONTRACT_LAYERS: Final = 2
"""Layers from below that a plugin may import: wire and contract."""

CORE_LAYERS: Final = 3
"""Layers from below that do no I/O."""

DO_IO: Final = frozenset({"asyncio", "random", "selectors", "socket", "ssl", "threading", "time"})
"""What a pure module never imports: time and chance are arguments, bytes are handed over."""

FOR_TYPING: Final = frozenset({"random"})
"""Of those, what may stand under TYPE_CHECKING: the type of an argument."""

PACKAGE_ARROWS: Final = {
    "broker": ("broker",),
    "plugins": ("plugins", "broker"),
    "edge_proxy": ("edge_proxy", "broker", "plugins"),
    # The messages and links on which the production policies decide are the broker's.
    "models": ("models", "plugins", "broker.message", "broker.link", "broker.payload"),
    # An executor of Spark needs no broker.
    "spark_bridge": ("spark_bridge", "plugins.queue.client"),
    # These start programs and import none of their insides.
    "netem": ("netem",),
    "benchmarks": ("benchmarks",),
    # The command imports a program when it is named.
    "penstock": (),
}
"""Package to what its modules may import of ours."""

MODULE_ARROWS: Final = {
    # How fast messages are stored can only be measured in the process that stores them.
    "benchmarks.queue_throughput": ("benchmarks", "broker.message", "plugins.queue"),
    # Decisions can only be timed in the process that takes them.
    "benchmarks.decision_cost": (
        "benchmarks",
        "broker.link",
        "broker.message",
        "plugins.withholding",
    ),
    # A network is what it measures, or what it measures on.
    "benchmarks.lossy_links": ("benchmarks", "netem"),
    "benchmarks.lossy_report": ("benchmarks", "netem"),
    "benchmarks.small_first": ("benchmarks", "netem"),
    "benchmarks.tunnel": ("benchmarks", "netem"),
}
"""Module to what it may import of ours, where its package's arrows do not hold."""

PLUGIN_ADAPTERS: Final = frozenset(
    {
        "plugins.access.control",
        "plugins.access.scram",
        "plugins.console.api",
        "plugins.memory.copies",
        "plugins.memory.spill",
        "plugins.memory.store",
        "plugins.probing.sampler",
        "plugins.queue.sink",
        "plugins.withholding.ack_sizes",
        "plugins.withholding.gate",
    }
)
"""The modules of plugins that alone touch `broker.extensions` and `broker.access_control`."""

PLUGIN_IO: Final = PLUGIN_ADAPTERS | {
    "plugins.access.__main__",
    "plugins.access.passwd",
    "plugins.access.turns",
    "plugins.console.auth",
    "plugins.console.why",
    "plugins.memory.spill_file",
    "plugins.probing.tcp_info",
    "plugins.queue.__main__",
    "plugins.queue.arrow_batches",
    "plugins.queue.batch_format",  # its reading side is the client's
    "plugins.queue.client",
    "plugins.queue.disk_reserve",
    "plugins.queue.engine",  # its methods return futures
    "plugins.queue.engine_local",
    "plugins.queue.engine_memory",
    "plugins.queue.engine_redis",
    "plugins.queue.engine_sqlite",
    "plugins.queue.fabric",
    "plugins.queue.gateway",
    "plugins.queue.group_commit",
    "plugins.queue.http_api",
    "plugins.queue.http_requests",
    "plugins.queue.intake",
    "plugins.queue.logical_queue",
    "plugins.queue.sqlite_file",
    "plugins.queue.sqs_api",
    "plugins.queue.store",  # speaks the engine's words
    "plugins.web.bodies",
    "plugins.web.guard",
    "plugins.web.service",
}
"""The modules of plugins that are not pure; the models may use all others."""

SHARED_BY_PLUGINS: Final = ("plugins.web",)
"""Folders of plugins/ that are no plugin, and on which several stand."""

PURE_PLUGIN_IMPORTS: Final = (
    "broker.message",
    "broker.link",
    "broker.payload",
    # What matches a topic filter is written once.
    "broker.mqtt.topics",
    # A mistake in a user's file reads the same wherever it is found.
    "broker.errors",
)
"""What a pure module of a plugin may import of the broker."""

CONFIG_IMPORTS: Final = (*PURE_PLUGIN_IMPORTS, "broker.config")
"""The same for a plugin's ``config.py``."""

EDGE_PROXY_PURE: Final = frozenset(
    {
        "edge_proxy.ack_map",
        "edge_proxy.client_side",
        "edge_proxy.client_stream",
        "edge_proxy.content_index",
        "edge_proxy.direction",
        "edge_proxy.filter_union",
        "edge_proxy.lanes",
        "edge_proxy.link_samplers",
        "edge_proxy.pair",
        "edge_proxy.shared",
        "edge_proxy.topic_cache",
        "edge_proxy.topic_map",
    }
)

EDGE_PROXY_ASSEMBLIES: Final = frozenset({"edge_proxy.aggregator"})
"""The modules of the edge proxy that may import the broker's I/O layer."""

ABOVE_THE_CONTRACT: Final = {
    # It brings plugins in as the broker does.
    "edge_proxy.sidecar": ("broker.plugin_loader", "broker.open_files"),
    # Programs of their own, which begin and end as the broker's does.
    "edge_proxy.__main__": ("broker.program",),
    "plugins.access.passwd": ("broker.program",),
    "plugins.console.why": ("broker.program",),
    "plugins.queue.gateway": ("broker.program",),
    # An HTTP API has its share of the files that the process may have open.
    "plugins.web.service": ("broker.open_files",),
    # A file that holds messages is kept from others in one way.
    "plugins.queue.disk_reserve": ("broker.database_file",),
    "plugins.queue.engine_sqlite": ("broker.database_file",),
}
"""Modules outside the broker that may import these of its I/O layer, and why."""

ONLY_IMPORTERS: Final = {
    "amqtt": ("broker.amqtt_host",),
    "pyspark": ("spark_bridge",),
}
"""Third-party package to the modules, or packages of modules, that may import it."""
