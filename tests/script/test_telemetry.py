from __future__ import annotations

import json
import math
import os

from penstock.broker.mqtt.topics import validate_topic
from script.demo_program.clients import read_number
from script.demo_program.telemetry import Sample, Sampler, host_name


def test_a_look_at_this_machine_gives_finite_values_of_every_kind() -> None:
    """Processor, memory, network, disk and processes are in every look."""
    samples = Sampler().sample()
    kinds = {one.metric.partition(".")[0] for one in samples}
    assert {"cpu", "memory", "network", "disk", "process"} <= kinds
    assert all(math.isfinite(one.value) and one.value >= 0 for one in samples)
    for one in samples:
        validate_topic(f"telemetry/{host_name()}/{one.metric}")
        assert "/" not in one.metric + host_name()


def test_a_process_is_named_by_its_pid() -> None:
    """Each sample of a process says which one."""
    for one in Sampler().sample():
        assert (one.pid is not None) == one.metric.startswith("process.")


def test_a_payload_has_the_fields_that_telemetry_needs() -> None:
    """The pipeline reads host, metric, value, unit and at; the demo finds n again."""
    told = Sample("cpu.total", 12.5, "percent", 1_700_000_000.5).payload("here", 7)
    assert json.loads(told) == {
        "host": "here",
        "metric": "cpu.total",
        "value": 12.5,
        "unit": "percent",
        "at": 1_700_000_000.5,
        "n": 7,
    }
    assert read_number(told) == 7
    of_process = Sample("process.cpu", 1.0, "percent", 0.0, os.getpid(), "python")
    assert json.loads(of_process.payload("here", 8))["process"] == "python"


def test_payloads_of_others_have_no_number() -> None:
    """Whatever else is published by hand is not taken for one of the demo's."""
    assert [read_number(payload) for payload in (b"good", b"[1]", b"{}", b'{"n": "1"}')] == [
        None
    ] * 4
