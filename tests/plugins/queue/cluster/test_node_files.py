from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.plugins.queue.cluster.node_files import QUEUE_USER_RULES, all_files, write_files
from penstock.plugins.queue.cluster.nodes_file import read_nodes_file
from penstock.plugins.queue.config import QueueConfig
from tests.helpers.fabric import write_nodes_file

ROOT = Path(__file__).resolve().parents[4]
NODES = {name: {"address": f"192.0.2.{at}"} for at, name in enumerate("abc", start=1)}


def test_each_machine_gets_its_servers_units_and_a_script_that_runs(tmp_path: Path) -> None:
    """Files with passwords are their owner's alone; the script is one of sh."""
    (tmp_path / "admin").write_text('a "b" \\c\n')
    keys = {"admin_password_file": str(tmp_path / "admin"), "replicas": 1}
    file = write_nodes_file(tmp_path, NODES, **keys)
    files = all_files(read_nodes_file(file), file)
    assert {str(path) for path in files} == {"policy.yaml"} | {
        f"{name}/{one}"
        for name in "abc"
        for one in (
            "install.sh",
            "policy.yaml",
            "penstock-fabric@.service",
            *(f"{6379 + n}.conf" for n in range(4)),
        )
    }
    for path, text in files.items():
        if path.name == "policy.yaml":
            queue = parse_policy(text, "policy").plugins["queue"]
            redis = validate_config(QueueConfig, queue, "policy", "plugins.queue").redis
            local = [] if len(path.parts) == 1 else [f"{path.parent}:{6379 + n}" for n in range(4)]
            names = {node["address"]: name for name, node in NODES.items()}
            found = [one.rpartition(":") for one in redis.local_nodes]
            assert [f"{names[host]}:{port}" for host, _, port in found] == local
    for _ in range(2):  # a second plan replaces the first
        write_files(files, tmp_path / "out")
    conf = tmp_path / "out" / "b" / "6380.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    lines = conf.read_text().splitlines()
    assert {"port 6380", "bind 192.0.2.2", "cluster-port 16380"} <= set(lines)
    assert r'masterauth "a \"b\" \\c"' in lines
    subprocess.run(["sh", "-n", str(tmp_path / "out" / "b" / "install.sh")], check=True)
    assert "penstock-fabric@6382" in (tmp_path / "out" / "b" / "install.sh").read_text()


def test_tls_and_the_queue_s_user_reach_servers_and_policy(tmp_path: Path) -> None:
    """The plain port is closed; the user has what the manual says, and no more."""
    for name in ("admin", "queue"):
        (tmp_path / name).write_text(f"{name}-secret")
    file = write_nodes_file(
        tmp_path,
        NODES,
        admin_password_file=str(tmp_path / "admin"),
        user="penstock",
        password_file=str(tmp_path / "queue"),
        tls={"ca": "/t/ca.pem", "certificate": "/t/c.pem", "key": "/t/k.pem"},
    )
    config = read_nodes_file(file)
    files = {str(path): text for path, text in all_files(config, file).items()}
    lines = files["a/6379.conf"].splitlines()
    assert {"port 0", "tls-port 6379", "tls-cluster yes", "tls-replication yes"} <= set(lines)
    (user,) = [line for line in lines if line.startswith("user ")]
    assert user.startswith("user penstock on #")
    assert user.endswith(f" ~penstock:* &penstock:* {QUEUE_USER_RULES}")
    assert "queue-secret" not in files["a/6379.conf"]
    assert config.redis_keys()["user"] == "penstock"
    assert config.redis_keys()["tls"] == {"ca": "/t/ca.pem"}
    manual = " ".join((ROOT / "docs" / "how-to" / "queue-on-redis.md").read_text().split())
    assert f"~penstock:* &penstock:* {QUEUE_USER_RULES}" in manual


def test_a_password_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The key, the file and what is allowed; nothing is written then."""
    (tmp_path / "empty").write_text("\n")
    for name, told in (("gone", "No such file"), ("empty", "no password in")):
        file = write_nodes_file(tmp_path, NODES, admin_password_file=str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"admin_password_file: .*{told}"):
            all_files(read_nodes_file(file), file)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """Such as one that is a file."""
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="allowed: a folder that can be written to"):
        write_files({Path("a/x"): ""}, tmp_path / "out")


def test_a_file_that_was_not_written_here_stays(tmp_path: Path) -> None:
    """Such as the policy file of a broker; none of the others is written then."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("listeners: {default: {bind: 127.0.0.1:1883}}\n")
    with pytest.raises(ConfigError, match=r"policy\.yaml: file: read what penstock fabric has not"):
        write_files({Path("a/x"): "", Path("policy.yaml"): ""}, tmp_path)
    assert policy.read_text().startswith("listeners:")
    assert not (tmp_path / "a").exists()
