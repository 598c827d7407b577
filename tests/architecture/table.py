"""Who may import whom: the arrows between packages, and between the folders of broker/.

This table is the rule, and it holds folders: a new file in one of them needs no entry. A module of
a plugin counts as pure unless it is named here as one that does I/O. Names are those below
``penstock``. An entry that names nothing, or that nobody needs, fails a test.
"""

from __future__ import annotations

from typing import Final

FOLDERS: Final = (
    "mqtt",
    "config",
    "outbox",
    "sending",
    "routing",
    "sessions",
    "durable",
    "receiving",
    "fast_paths",
    "network",
    "process",
    "reports",
    "operations",
    "amqtt_host",
    "import_mosquitto",
)
"""Folders of broker/: each imports those before it, imports for typing counted.

What waits for a client (`outbox`) and what leaves for it (`sending`) come before who gets a message
(`routing`), as the router hands messages to subscribers: it sees of a session what stands in
`routing.subscriber`. Sessions join the three; `durable` implements what they say to the journal.
"""

CONTRACT: Final = frozenset(
    {
        "access_control",
        "client_report",
        "counters",
        "errors",
        "events",
        "extensions",
        "plugin_guard",
        "link",
        "message",
        "operations_contract",
        "payload",
        "session_rows",
        "timers",
    }
)
"""Modules at the root of broker/ that every folder may import, and that import `mqtt` alone."""

ASSEMBLY: Final = frozenset({"__main__", "check", "plugin_loader", "server"})
"""Modules at the root of broker/ that do I/O or put the rest together."""

CONTRACT_FOLDERS: Final = ("mqtt", "config")
"""Folders of broker/ that a plugin may import, beside the contract."""

DOES_IO: Final = (
    "amqtt_host",
    "config.loopback_only",
    "durable.commits",
    "durable.database",
    "durable.database_file",
    "durable.persistence",
    "durable.locked_database",
    "durable.restore",
    "durable.storage_clock",
    "import_mosquitto",
    "network",
    "operations",
    "process",
    "reports.client_topics",
    "reports.sampling",
    "reports.sys_topics",
)
"""Folders and modules of broker/ that have a clock, a file or a socket; the rest is pure."""

MOST_NODES: Final = 32
"""Folders of broker/ and modules at its root."""

MOST_IN_A_CIRCLE: Final = 8
"""Modules of a folder of broker/ that may name each other, imports for typing counted."""

DO_IO: Final = frozenset({"asyncio", "random", "selectors", "socket", "ssl", "threading", "time"})
"""What a pure module never imports: time and chance are arguments, bytes are handed over."""

FOR_TYPING: Final = frozenset({"asyncio", "random"})
"""The I/O modules that may stand under TYPE_CHECKING, for the type of an argument."""

PACKAGE_ARROWS: Final = {
    "broker": ("broker",),
    "plugins": ("plugins", "broker"),
    "edge_proxy": ("edge_proxy", "broker", "plugins"),
    # The messages and links on which the production policies decide are the broker's; a YAML file,
    # a size and a command line are read in one way. Intervals, verdicts and the figures of pages
    # have one rule, netem's.
    "models": (
        "models",
        "plugins",
        "broker.message",
        "broker.link",
        "broker.payload",
        "netem.figures.estimates",
        "netem.figures.figure_file",
        # What an experiment has recorded is simulated, too.
        "netem.figures.table_rows",
        "netem.figures.table_files",
        "netem.progress_display",
        "netem.errors",
        "broker.config.checked_yaml",
        "broker.config.command_line",
        "broker.config.key_types",
        "broker.errors",
        # Of a recording, what matches a topic filter. A recorder logs in as `penstock sub` does.
        "broker.mqtt.topics",
        "lanes.login",
    ),
    # An executor of Spark needs no broker; a size, an address, a YAML file, a command line, a topic
    # filter and a message's key are read in one way. Servers of the engine `redis` are found as the
    # engine does, and what they keep has one form. A micro-batch's span is sent as messages' are.
    "spark_bridge": (
        "spark_bridge",
        "plugins.queue.batch_client",
        "plugins.queue.client",
        "plugins.queue.wire",
        "plugins.queue.engines.contract",
        "plugins.queue.engines.redis",
        "plugins.redis",
        "plugins.queue.strategies.message_key",
        "plugins.trace.spans",
        "plugins.web.bind",
        "broker.config.checked_yaml",
        "broker.config.key_types",
        "broker.config.command_line",
        "broker.errors",
        "broker.mqtt.topics",
    ),
    # Applications import it; it needs the client that it stands for, and nothing of ours.
    "lanes": ("lanes",),
    # These start programs and import none of their insides; peers and networks are netem's, and a
    # YAML file, a size and a topic filter are read in one way.
    "netem": ("netem", "broker.config", "broker.errors", "broker.mqtt.topics", "lanes.client"),
    "benchmarks": ("benchmarks", "netem", "broker.config.command_line"),
    # The command imports a program when it is named.
    "penstock": (),
}
"""Package to what its modules may import of ours."""

MODULE_ARROWS: Final = {
    # It decides in the broker's process what a policy that knew everything would.
    "netem.oracle": (
        "netem.oracle_file",
        "broker.config.key_types",
        "broker.extensions",
        "broker.link",
        "broker.message",
    ),
    # A client for operators is a program beside what applications import.
    "lanes.login": (
        "broker.config.checked_yaml",
        "broker.config.command_line",
        "broker.config.secret_file",
        "broker.errors",
    ),
    "lanes.commands": (
        "lanes",
        "broker.config.command_line",
        "broker.errors",
        "broker.mqtt.topics",
        "plugins.web.text_table",
        "plugins.queue.wire.frames",
        "plugins.web.terminal_escape",
    ),
    # A plan is validated on a broker that is started as experiments start theirs.
    "models.planner.live_run": (
        "models",
        "netem.clients.on_off_plan",
        "netem.links.network",
        "netem.links.profiles",
        "netem.runs.broker_process",
        "netem.runs.on_off_run",
    ),
    # The simulation of links drives the broker's own gate and sampler, as a broker does.
    "models.kernels.link_simulation": (
        "models",
        "plugins",
        "broker.extensions",
        "broker.link",
        "broker.message",
        "broker.network.tcp_info",
    ),
    "models.papers.withholding.link_tables": (
        "models",
        "plugins",
        "broker.extensions",
        "netem.figures.estimates",
        "netem.figures.figure_file",
    ),
    "models.papers.withholding.oracle_gates": (
        "models",
        "plugins",
        "broker.extensions",
        "broker.link",
        "broker.message",
    ),
    # So are the real runs beside the models of papers 003 and 004.
    "models.papers.patterns.live_run": (
        "models",
        "netem.clients.on_off_plan",
        "netem.runs.broker_process",
        "netem.runs.on_off_run",
    ),
    "models.papers.visibility.live_run": (
        "models",
        "netem.errors",
        "netem.runs.broker_process",
        "plugins.queue.client",
    ),
    # How fast messages are stored can only be measured in the process that stores them.
    "benchmarks.queue_throughput": (
        "benchmarks",
        "netem",
        "broker.config",
        "broker.message",
        "broker.process.gc_control",
        "plugins.queue",
    ),
    # Consumers of the queue are its clients.
    "benchmarks.loads.queue_drain": ("benchmarks", "netem", "plugins.queue.client"),
    "benchmarks.fabric.hashing": (
        "models.papers.fabric.consistent_hashing",
        "plugins.queue.append_buffer",
        "plugins.queue.strategies",
    ),
    "benchmarks.fabric_faults": (
        "benchmarks",
        "netem",
        "plugins.queue.client",
        "plugins.queue.engines.redis.messages",
    ),
    "benchmarks.redis_store": (
        "benchmarks",
        "netem",
        "models.papers.fabric.store",
        "plugins.queue.engines",
        "plugins.redis",
        "broker.message",
    ),
}
"""Module to what it may import of ours, where its package's arrows do not hold."""

CHECKOUT_ONLY: Final = {"models.papers": ("models.papers", "models.__main__")}
"""Folder that no wheel has to the modules of its package that may import it."""

PLUGIN_ADAPTERS: Final = frozenset(
    {
        "plugins.access.control",
        "plugins.access.scram",
        "plugins.cluster.bounded_sink",
        "plugins.cluster.forwarder",
        "plugins.cluster.frames",  # names the property of messages for shared subscriptions
        "plugins.cluster.inbox",
        "plugins.cluster.inheritance",
        "plugins.cluster.mail",
        "plugins.cluster.mail_entries",
        "plugins.cluster.mail_sessions",
        "plugins.cluster.mail_sink",
        "plugins.cluster.node",
        "plugins.cluster.node_sink",
        "plugins.cluster.node_wills",
        "plugins.cluster.owners",
        "plugins.cluster.plugin",
        "plugins.cluster.retained",
        "plugins.cluster.shared",
        "plugins.console.api",
        "plugins.console.parts",  # clients of the broker's own process are left out of a list
        "plugins.memory.spill",
        "plugins.memory.store",
        "plugins.probing.sampler",
        "plugins.queue.consumers",
        "plugins.queue.append_buffer",  # settles receipts and counts
        "plugins.queue.publishing.batches",
        "plugins.queue.publishing.row_publisher",
        "plugins.queue.publishing.rows",  # names the property that a relay's PUBLISH ends with
        "plugins.queue.plugin",
        "plugins.queue.queue_metrics",
        "plugins.trace.plugin",
        "plugins.withholding.gate",
    }
)
"""The modules of plugins that alone touch `broker.extensions` and `broker.access_control`."""

PLUGIN_IO: Final = PLUGIN_ADAPTERS | {
    "plugins.cluster.__main__",
    "plugins.cluster.announcer",
    "plugins.cluster.asks",
    "plugins.cluster.engine",
    "plugins.cluster.figures",
    "plugins.cluster.mail_engine",
    "plugins.cluster.mail_expiry",
    "plugins.cluster.members",
    "plugins.cluster.notes",
    "plugins.cluster.told_figures",
    "plugins.access.__main__",
    "plugins.access.passwd",
    "plugins.access.fair_queue",
    "plugins.access.first_policy",
    "plugins.trace.spans",  # gives spans their times
    "plugins.console.acting",
    "plugins.console.callers",
    "plugins.console.commands",
    "plugins.console.delivery_rates",
    "plugins.console.exposition",
    "plugins.console.lists",
    "plugins.console.overview",
    "plugins.console.reading",
    "plugins.console.shared",
    "plugins.console.static_page",
    "plugins.console.streams",
    "plugins.memory.spill_file",
    "plugins.queue.__main__",
    "plugins.queue.access",
    "plugins.queue.batch_client",
    "plugins.queue.batch_format",  # its reading side is the client's
    "plugins.queue.client",
    "plugins.queue.commands",
    "plugins.queue.engines",
    "plugins.queue.standalone_server",
    "plugins.queue.http",
    "plugins.queue.logical_queue",
    "plugins.queue.publishing",
    "plugins.queue.report",
    "plugins.queue.service",
    "plugins.queue.slow_appends",
    "plugins.queue.sqs",
    "plugins.queue.wire.connection",
    "plugins.redis.calls",
    "plugins.redis.checks",
    "plugins.redis.discovery",
    "plugins.redis.library",
    "plugins.redis.login",
    "plugins.redis.pipeline",
    "plugins.redis.routes",
    "plugins.redis.server",
    "plugins.redis.stream_reader",
    "plugins.web.bodies",
    "plugins.web.connection_limits",
    "plugins.web.contexts",
    "plugins.web.service",
    "plugins.web.cooperative_work",
    "plugins.web.tls",
}
"""The modules and folders of plugins that are not pure; the models may use all others."""

DRIVEN_BY_MODELS: Final = {
    "plugins.withholding.gate",
    "plugins.probing.sampler",
    # Groups and their leases, and what these are made of: without storage, tasks or clock.
    "plugins.queue.client",
    "plugins.queue.engines.contract",
    "plugins.queue.engines.leases",
    "plugins.queue.engines.partition",
    "plugins.queue.engines.receipts",
    "plugins.queue.engines.segments",
    "plugins.queue.engines.store",
}
"""The modules of plugins that are not pure and that the models may use all the same: a plugin
reads a file at its start, its gate does not."""

SHARED_BY_PLUGINS: Final = ("plugins.redis", "plugins.web")
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

CONFIG_IMPORTS: Final = (
    *PURE_PLUGIN_IMPORTS,
    "broker.config.checked_yaml",
    "broker.config.key_types",
)
"""What a plugin's ``config.py`` may import, and ``limits.py`` of what several share."""

EDGE_PROXY_PURE: Final = frozenset(
    {
        "edge_proxy.uplink.cloud_subscriptions",
        "edge_proxy.uplink.schedule_and_budget",
        "edge_proxy.uplink.connecting",
        "edge_proxy.uplink.filters",
        "edge_proxy.uplink.packet_relay",
        "edge_proxy.uplink.lanes",
        "edge_proxy.uplink.packet_stream",
        "edge_proxy.uplink.receivers",
        "edge_proxy.uplink.remapping",
        "edge_proxy.uplink.subscriptions",
        "edge_proxy.uplink.suspects",
        "edge_proxy.parts.partial_message",
        "edge_proxy.parts.cutting",
        "edge_proxy.parts.part_format",
        "edge_proxy.sidecar.ack_map",
        "edge_proxy.sidecar.client_side",
        "edge_proxy.sidecar.client_stream",
        "edge_proxy.sidecar.content_index",
        "edge_proxy.sidecar.direction",
        "edge_proxy.sidecar.identity",
        "edge_proxy.sidecar.link_samplers",
        "edge_proxy.sidecar.proxied_client",
        "edge_proxy.sidecar.proxy_state",
        "edge_proxy.sidecar.publish_cache",
    }
)

ABOVE_THE_CONTRACT: Final = {
    # It brings plugins in as the broker does, and has the broker's listeners.
    "edge_proxy.sidecar.sidecar": (
        "broker.plugin_loader",
        "broker.network",
        "broker.process.start_check",
        "broker.process.log_lines",
    ),
    # A socket is kept until its peer has seen the end in one way.
    "edge_proxy.sidecar.transport": (
        "broker.network.new_connection",
        "broker.network.lingering_close",
    ),
    # What operators see of a program is computed in one way.
    "edge_proxy.sidecar.operations": (
        "broker.network.listener_set",
        "broker.operations",
        "broker.process.log_lines",
        "broker.process.machine_memory",
        "broker.reports",
    ),
    "edge_proxy.sidecar.default_store": ("broker.plugin_loader",),
    # Programs of their own, which begin and end as the broker's does.
    # A site's broker is the broker.
    "edge_proxy.__main__": ("broker.process.program", "broker.server"),
    # A client in the broker's process waits for its answers in one way.
    "edge_proxy.local_client": ("broker.network.local_protocol",),
    "plugins.queue.publishing.row_publisher": ("broker.network.local_protocol",),
    "plugins.cluster.forwarder": ("broker.network.local_protocol",),
    # A file of SQLite is opened, locked and watched in one way.
    "edge_proxy.parts.spool": (
        "broker.durable.database_file",
        "broker.durable.disk_reserve",
        "broker.durable.locked_database",
    ),
    # TLS and the options of TCP exist once.
    "edge_proxy.upstream": ("broker.network.tcp_options", "broker.network.tls"),
    # What leaves on a lane of large messages is paced in one way.
    "edge_proxy.uplink.cloud_connection": ("broker.network.lane_pacer", "broker.network.tcp_info"),
    # The kernel is asked about a connection in one way.
    "plugins.probing.sampler": ("broker.network.tcp_info",),
    "plugins.access.first_policy": ("broker.process.program",),
    # A program without a broker has a process, too, which is told of in one way.
    "plugins.console.api": ("broker.operations.metrics", "broker.process.machine_memory"),
    # A guessed password is slowed down in one way.
    "plugins.console.callers": ("broker.sessions.login_backoff",),
    "plugins.queue.__main__": ("broker.process.program",),
    "plugins.queue.commands": ("broker.process.program",),
    # The gateway of queues brings plugins in as the broker does.
    "plugins.queue.standalone_server": ("broker.plugin_loader",),
    # An HTTP API has its share of the files that the process may have open.
    "plugins.web.service": ("broker.network.open_files",),
    # Certificates are read in one way.
    "plugins.redis.server": ("broker.network.tls",),
    "plugins.web.tls": ("broker.network.new_connection", "broker.network.tls"),
    # A file that holds messages is kept from others in one way.
    "plugins.queue.engines.checkpoints": ("broker.durable.database_file",),
    "plugins.queue.engines.sqlite": (
        "broker.durable.database_file",
        "broker.durable.disk_reserve",
        "broker.durable.locked_database",
    ),
    "plugins.queue.engines.sqlite_copies": ("broker.durable.database_file",),
    "plugins.queue.engines.sqlite_format": ("broker.durable.database_file",),
    # Deadlines on a disk are kept by one kind of clock.
    "plugins.queue.engines.local": ("broker.durable.storage_clock",),
    "plugins.queue.engines.redis.engine": ("broker.durable.storage_clock",),
    "plugins.queue.engines.redis.storing": ("broker.durable.storage_clock",),
    "plugins.queue.engines.engine_context": ("broker.durable.storage_clock",),
    "plugins.queue.engines.transaction": ("broker.durable.storage_clock",),
    "plugins.queue.plugin": ("broker.durable.storage_clock",),
    "plugins.queue.publishing.stage_file": (
        "broker.durable.database_file",
        "broker.durable.locked_database",
    ),
}
"""Modules outside the broker that may import these of its I/O layer, and why."""

ONLY_IMPORTERS: Final = {
    "amqtt": ("broker.amqtt_host",),
    "pyspark": ("spark_bridge", "benchmarks.loads.spark_alternatives"),
}
"""Third-party package to the modules, or packages of modules, that may import it."""
