from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from penstock.models.planner.policy_file import HEAD, policy, write
from penstock.plugins.queue.client import QueueClient
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import running_broker
from tests.models.planner.small_plan import make_fleet, small_plan


def test_the_broker_runs_with_the_file_of_a_plan(tmp_path: Path) -> None:
    """A camera's message reaches the queue of its back end, through the file as it was written."""
    file = tmp_path / "written.yaml"
    write(small_plan(), file)
    text = file.read_text()
    assert text.startswith(HEAD)
    keys: dict[str, Any] = yaml.safe_load(text)
    keys["listeners"]["default"]["bind"] = "127.0.0.1:0"
    keys["plugins"]["queue"]["http"] = "127.0.0.1:0"
    with running_broker(keys, tmp_path) as broker, PahoClient(broker.port) as camera:
        camera.connect()
        camera.publish("cameras/1", b"picture", qos=1)
        queue = QueueClient(broker.queue_url)
        (message,) = queue.receive("recognition", max_messages=1, wait_seconds=60)
        assert message.payload == b"picture"


def test_the_file_has_what_the_plan_found() -> None:
    """The keys of the settings table."""
    keys = policy(small_plan())
    assert keys["limits"]["connections"] == 39
    assert keys["persistence"]["durability"] == "normal"
    plugins = keys["plugins"]
    assert plugins["probing"] == {"probe_period": 1.0}
    assert plugins["withholding"]["threshold_s"] == 10_000
    queue = plugins["queue"]["queues"]["recognition"]
    assert (queue["topics"], queue["key"], queue["n_max"]) == (["cameras/#"], "topic", 5)
    assert queue["groups"]["default"]["order"] == "key"
    assert "memory" not in plugins


def test_the_file_has_only_what_is_needed() -> None:
    """D and lambda with the policies that have them, memory where it is short, no empty queue."""
    plan = small_plan()
    found = policy(replace(plan, policy="probabilistic"))["plugins"]["withholding"]
    assert (found["max_withhold"], found["congestion_rate"]) == (11.4, 0.1)
    small = replace(plan, fleet=make_fleet(("1 GiB", "64 MiB")))
    assert policy(small)["plugins"]["memory"] == {"store": "spill", "memory_limit": 2**25}
    alone = policy(replace(plan, fleet=replace(plan.fleet, back_ends={}), queues={}))
    assert "queue" not in alone["plugins"]
