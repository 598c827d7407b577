"""Tables of test files: which share a process, which begin first, which are of the second tier."""

from __future__ import annotations

from typing import Final

TOGETHER: Final = (
    tuple(
        f"tests/spark_bridge/{name}.py"
        for name in (
            "pipelines/test_running",
            "pipelines/test_building",
            "pipelines/test_decoding",
            "pipelines/test_storage",
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
    "tests/fuzz/",
    "tests/benchmarks/",
    "tests/system/",
    "tests/netem/clients/",
    "tests/netem/links/",
    "tests/spark_bridge/test_main.py",
)
"""Files and folders that take long, the longest first: started last, they would run alone at the
end."""

MORE: Final = {
    "tests/benchmarks/fabric/": "tests/plugins/queue/fabric has the fabric",
    "tests/benchmarks/rows/": "test_main runs `penstock bench`",
    "tests/benchmarks/test_curves.py": "test_main runs `penstock bench`",
    "tests/benchmarks/test_fabric_faults.py": "the queue's engines have tests on a cluster",
    "tests/benchmarks/test_queue_": "tests/plugins/queue has what they measure",
    "tests/benchmarks/test_redis_store.py": "the engine on Redis has tests of its own",
    "tests/benchmarks/test_spark_": "tests/spark_bridge has what they measure",
    "tests/broker/process/test_gc_control.py": "what it tells needs seconds of work",
    "tests/broker/process/test_memory_trim.py::test_numbers": "a backlog is given back",
    "tests/broker/process/test_memory_trim.py::test_what_a_few": "a backlog is given back",
    "tests/campaigns/": "tests/system/test_persistence kills a broker with each kind of state",
    "tests/fuzz/": "tests/broker/mqtt has random and damaged packets",
    "tests/spark_bridge/pipelines/test_running.py::test_the_page_goes": "the example runs",
    "tests/spark_bridge/pipelines/test_running.py::test_what_a_killed": "the example runs",
    "tests/spark_bridge/test_class_archive.py": "Spark starts without the archive, too",
    "tests/spark_bridge/test_source.py::test_each_message_is_written_once_though": (
        "each message is written once where nothing is killed"
    ),
    "tests/spark_bridge/test_source.py::test_tasks_read_from_redis": "ranges/ reads from Redis",
    "tests/system/interop/test_cuts.py": "test_paho_cases redelivers after a lost connection",
    "tests/system/interop/test_sidecar_matrix.py": "test_sidecar has clients of both versions",
    "tests/system/test_demo.py::test_a_broker_that_dies": "the demo runs to its end",
    "tests/system/test_demo.py::test_ctrl_c": "the demo runs to its end",
    "tests/system/test_demo_ratios.py": "test_demo runs the demo",
    "tests/system/test_edge_page.py::test_an_alarm_of_an_imported": "the page has a site",
    "tests/system/test_full_disk.py": "tests/broker/durable/test_journal_full_disk has the rules",
    "tests/system/test_limits.py::test_packets_as_large": "refusals say why in the same file",
    "tests/system/test_memory.py::test_memory_is_back": "it stays within its limit",
    "tests/system/test_memory.py::test_persistence_and_spill": "it stays within its limit",
    "tests/system/test_sidecar_stalled_subscribers.py": "test_stalled_subscribers has the broker",
    "tests/system/test_transports.py::test_stalled": "test_stalled_subscribers has TCP",
    "tests/system/test_transports.py::test_thousands": "a client with half a handshake is closed",
    "tests/system/test_lanes_mqttjs.py::test_a_refused_lane": "an alarm passes a picture",
    "tests/system/test_lanes_mqttjs.py::test_an_alarm_passes_a_picture_in_both_directions[ws]": (
        "the same over TCP"
    ),
    "tests/system/test_lanes_paho.py": "tests/lanes/test_paho has the client",
    "tests/system/test_malformed_http.py": "each API has tests of its own bodies",
    "tests/system/test_malformed_input.py": "tests/conformance has each wrong packet",
    "tests/system/test_netem_scenarios.py": "test_netem_run runs a scenario",
    "tests/system/test_one_name.py": "the suite imports what is installed",
    "tests/system/test_open_files.py": "tests/broker/network/test_open_files has the limit",
    "tests/system/test_spark_cluster.py": "tests/spark_bridge/test_source reads in one process",
    "tests/system/test_uplink_acl.py": "test_uplink_mosquitto has an uplink to a real broker",
    "tests/system/test_uplink_aws.py": "test_uplink_mosquitto has an uplink to a real broker",
    "tests/system/test_uplink_lanes.py": "test_uplink_second_connection has both lanes",
    "tests/system/test_uplink_poison.py": "tests/edge_proxy/uplink has what is not taken",
}
"""The second tier, which runs with `script/test --all`: the beginnings of tests' ids, each to where
the first tier shows the main way. It holds what is long, or goes deeper."""
