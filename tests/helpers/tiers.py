"""Tables of test files: those of one process, those that start first, those of the second tier."""

from __future__ import annotations

from typing import Final

TOGETHER: Final = (
    tuple(
        f"tests/spark_bridge/{name}.py"
        for name in (
            "pipelines/test_batch_spans",
            "pipelines/test_running",
            "pipelines/test_building",
            "pipelines/test_decoding",
            "test_hadoop_files",
            "test_class_archive",
            "test_schema",
            "test_session",
            "test_sink",
            "test_sink_folder",
            "test_source",
        )
    ),
    ("tests/architecture/",),
)
"""Groups of files that share something expensive in one process: those with the fixture `spark`
share one Spark, and those of the architecture share the text of all modules."""

SLOW: Final = (
    *TOGETHER[0],
    "tests/campaigns/test_spark_kills.py",
    "tests/system/test_spark_cluster.py",
    "tests/system/test_netem_scenarios.py",
    "tests/system/test_demo_ratios.py",
    "tests/system/test_demo.py",
    "tests/benchmarks/test_curves.py",
    "tests/campaigns/",
    "tests/benchmarks/test_spark_ingest.py",
    "tests/system/test_persistence.py",
    "tests/system/test_netem_run.py",
    "tests/plugins/memory/test_spill_broker.py",
    "tests/plugins/queue/test_standalone_server.py",
    "tests/cluster/",
    "tests/fuzz/",
    "tests/benchmarks/",
    "tests/system/",
    "tests/netem/clients/",
    "tests/netem/links/",
    "tests/spark_bridge/test_main.py",
)
"""The slow files and folders, the slowest first: if they started last, they would run alone at
the end."""

_PROGRAMS: Final = "tests/system/test_lanes_programs.py::test_an_alarm"
_RESTART: Final = "tests/system/test_sidecar_restart.py::test_a_client_comes_back"
_WAY: Final = "while_a_picture_is_on_its_way"

MORE: Final = {
    "tests/benchmarks/fabric/": "tests/models/papers/fabric has the fabric",
    "tests/benchmarks/rows/": "test_main runs `penstock bench`",
    "tests/benchmarks/test_cluster.py": "tests/cluster has what it measures",
    "tests/benchmarks/test_curves.py": "test_main runs `penstock bench`",
    "tests/benchmarks/test_first_minute.py": "tests/deploy/test_image.py installs and starts, too",
    "tests/benchmarks/test_fabric_faults.py": "the queue's engines have tests on a cluster",
    "tests/benchmarks/test_queue_": "tests/plugins/queue has what they measure",
    "tests/benchmarks/test_redis_store.py": "the engine on Redis has tests of its own",
    "tests/benchmarks/test_spark_": "tests/spark_bridge has what they measure",
    "tests/broker/process/test_gc_control.py": "what it tells needs seconds of work",
    "tests/broker/process/test_memory_trim.py::test_numbers": "a backlog is given back",
    "tests/broker/process/test_memory_trim.py::test_what_a_few": "a backlog is given back",
    "tests/campaigns/": "tests/system/test_persistence kills a broker with each kind of state",
    "tests/cluster/test_ledger.py": "test_node_faults has what arrives after a fault",
    "tests/cluster/test_page.py": "the other files have a cluster without a load balancer",
    "tests/fuzz/": "tests/broker/mqtt has random and damaged packets",
    "tests/models/papers/patterns/test_live_run.py": "the simulation has the same patterns",
    "tests/models/papers/test_evaluations.py::test_each_evaluation": "test_main runs each command",
    "tests/models/papers/visibility/test_live_run.py": "the simulation has the same queue",
    "tests/models/papers/withholding/test_policies_on_links.py": "a simulation has the policies",
    "tests/models/planner/test_live_run.py": "the planner's models have tests without a broker",
    "tests/netem/figures/test_plots.py::test_a_": "each broker is on each plot",
    "tests/netem/figures/test_plots.py::test_one_unit": "each broker is on each plot",
    "tests/netem/figures/test_plots.py::test_seeds": "each broker is on each plot",
    "tests/netem/figures/test_plots.py::test_what_never": "each broker is on each plot",
    "tests/plugins/queue/engines/contract/test_at_once.py": "the other files have the rules",
    "tests/plugins/queue/engines/contract/test_machine.py": (
        "the other files have the rules one by one"
    ),
    "tests/plugins/queue/engines/redis/test_library.py::test_a_call_for_many": "a few messages",
    "tests/plugins/queue/engines/redis/test_rings_recipe.py": "test_routes has slots that move",
    "tests/spark_bridge/pipelines/test_building.py::test_what_has_changed": (
        "views are built and refused"
    ),
    "tests/spark_bridge/pipelines/test_running.py::test_the_example": "a run follows a queue",
    "tests/spark_bridge/pipelines/test_running.py::test_the_page_goes": "a run follows a queue",
    "tests/spark_bridge/pipelines/test_running.py::test_what_a_killed": "a run follows a queue",
    "tests/spark_bridge/test_class_archive.py": "Spark starts without the archive, too",
    "tests/spark_bridge/test_main.py::test_a_java_that": "a run with a wrong setting ends",
    "tests/spark_bridge/test_main.py::test_a_signal_while": "Ctrl+C ends it before Spark starts",
    "tests/spark_bridge/test_sink.py::test_a_pipeline_publishes": "a detection becomes a command",
    "tests/spark_bridge/test_source.py::test_a_batch_that_failed": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_a_checkpoint_is_wound": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_a_notebook": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_a_query_reads_several": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_a_queue_created_again": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_each_message_is_written_once_though": (
        "each message is written once where nothing is killed"
    ),
    "tests/spark_bridge/test_source.py::test_sources_of_one_query": "a query follows a queue",
    "tests/spark_bridge/test_source.py::test_tasks_read_from_redis": "ranges/ reads from Redis",
    "tests/system/interop/test_cuts.py": "test_paho_cases redelivers after a lost connection",
    "tests/system/interop/test_matrix.py::test_aiomqtt": "test_paho has the client below it",
    "tests/system/interop/test_sidecar_matrix.py": "test_sidecar has clients of both versions",
    "tests/system/test_demo.py::test_a_broker_that_dies": "the demo runs to its end",
    "tests/system/test_demo.py::test_ctrl_c": "the demo runs to its end",
    "tests/system/test_demo_ratios.py": "test_demo runs the demo",
    "tests/system/test_edge_page.py::test_an_alarm_of_an_imported": "the page has a site",
    "tests/system/test_example_plugin.py": "test_plugins_page has plugins in a real broker",
    "tests/system/test_full_disk.py": "tests/broker/durable/test_journal_full_disk has the rules",
    "tests/system/test_lanes_mqttjs.py::test_a_refused_lane": "an alarm passes a picture",
    "tests/system/test_lanes_mqttjs.py::test_an_alarm_passes_a_picture_in_both_directions[ws]": (
        "the same over TCP"
    ),
    "tests/system/test_lanes_paho.py": "tests/lanes/test_paho has the client",
    f"{_PROGRAMS}_arrives_{_WAY}[aiomqtt-behind": "the same on a direct connection",
    f"{_PROGRAMS}_arrives_{_WAY}[paho-behind": "the same on a direct connection",
    f"{_PROGRAMS}_leaves_{_WAY}[behind": "the same on a direct connection",
    "tests/system/test_large_ahead.py::test_behind_a_relay": (
        "a client on a direct connection is told"
    ),
    "tests/system/test_limits.py::test_packets_as_large": "refusals say why in the same file",
    "tests/system/test_malformed_http.py": "each API has tests of its own bodies",
    "tests/system/test_malformed_input.py": "tests/conformance has each wrong packet",
    "tests/system/test_memory.py::test_memory_is_back": "it stays within its limit",
    "tests/system/test_memory.py::test_persistence_and_spill": "it stays within its limit",
    "tests/system/test_netem_scenarios.py": "test_netem_run runs a scenario",
    "tests/system/test_one_name.py": "the suite imports what is installed",
    "tests/system/test_open_files.py": "tests/broker/network/test_new_connection has the limit",
    "tests/system/test_queue_durability.py": "engines/test_group_commit has a disk that refuses",
    "tests/system/test_queue_page.py": "tests/plugins/queue/http has each request",
    f"{_RESTART}_after_a_restart_of_the_broker[mqtt_js]": "other clients come back",
    "tests/system/test_sidecar_stalled_subscribers.py": "test_stalled_subscribers has the broker",
    "tests/system/test_spark_cluster.py": "tests/spark_bridge/test_source reads in one process",
    "tests/system/test_transports.py::test_stalled": "test_stalled_subscribers has TCP",
    "tests/system/test_transports.py::test_thousands": "a client with half a handshake is closed",
    "tests/system/test_tutorial.py::test_the_tutorial_shows_what_it_says[bbr]": "with cubic",
    "tests/plugins/queue/engines/redis/test_discovery.py": "test_queue_on_redis uses one server",
    "tests/system/test_uplink_acl.py": "test_uplink_mosquitto has an uplink to a real broker",
    "tests/system/test_uplink_aws.py": "test_uplink_mosquitto has an uplink to a real broker",
    "tests/system/test_uplink_lanes.py": "test_uplink_second_connection has both lanes",
    "tests/system/test_uplink_poison.py": "tests/edge_proxy/uplink has what is not taken",
    "tests/test_penstock.py::test_each_program_without": "a program without its extra names it",
    "tests/test_penstock.py::test_the_shell_completes": "each command line has its own test",
}
"""The second tier, which runs with `script/test --all`: the prefixes of tests' ids, each with
the place where the first tier shows the main way. It holds tests that are long or go into
detail."""
