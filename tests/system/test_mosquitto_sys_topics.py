from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import SECONDS, anonymous_policy, running_broker

MOSQUITTO_TOPICS = 53
"""So many mosquitto 2.0 publishes."""


def sys_tree(port: int, n_least: int) -> dict[str, str]:
    """Return the value of each topic below $SYS, once there are so many."""
    command = ["mosquitto_sub", "-p", str(port), "-t", "$SYS/#", "-F", "%t\t%p"]
    command += ["-W", str(int(SECONDS))]
    found: dict[str, str] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            topic, _, value = line.rstrip("\n").partition("\t")
            found[topic] = value
            if len(found) >= n_least and topic.endswith("/uptime"):
                break
        process.kill()
    return found


def form_of(value: str) -> str:
    """Return what a parser of the value sees: an integer, two decimals, or words around numbers."""
    return re.sub(r"\d+", "0", re.sub(r"\d+\.\d\d\b", "0.00", value))


def test_every_topic_of_mosquitto_is_there_in_its_form(tmp_path: Path) -> None:
    """What an exporter or a dashboard for mosquitto reads is filled."""
    with running_mosquitto(tmp_path, "sys_interval 1") as mosquitto:
        theirs = sys_tree(mosquitto.port, MOSQUITTO_TOPICS)
    assert len(theirs) == MOSQUITTO_TOPICS
    policy = {**anonymous_policy(), "sys_interval": 1}
    with running_broker(policy, tmp_path) as broker:
        ours = sys_tree(broker.port, MOSQUITTO_TOPICS)
    assert sorted(theirs.keys() - ours.keys()) == []
    del theirs["$SYS/broker/version"]  # the name of the broker
    assert {topic: form_of(ours[topic]) for topic in theirs} == {
        topic: form_of(value) for topic, value in theirs.items()
    }
