"""The files of a fabric's machines: servers, units of systemd, a script, and the policy's part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.plugins.queue.cluster.nodes_file import BUS_PORTS, FabricConfig, Server
from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.login import named, read_password

QUEUE_USER_RULES: Final = (
    "-@all +@hash +@sortedset +fcall +function|list +function|load +publish +subscribe "
    "+unsubscribe +ping +info +time +exists +unlink +expire +wait +select +cluster|slots "
    "+config|get"
)
"""What brokers and gateways may do, beside keys and channels below their prefix."""

UNIT: Final = "penstock-fabric@.service"
POLICY: Final = "policy.yaml"
SCRIPT: Final = "install.sh"
_POLICY_HEAD: Final = "# The queue on the fabric: a part of a policy file.\n"
_SCRIPT_HEAD: Final = "# Installs and starts the servers of "
_HEADS: Final = ("ritten by penstock fabric plan", _POLICY_HEAD, _SCRIPT_HEAD)
"""What the first lines of a file have that was written here."""
_HEAD_BYTES: Final = 300
_NOT_OURS: Final = ConfigProblem(
    "file", "what penstock fabric has not written", "a folder without files of these names"
)
_BACKLOG: Final = "16mb"
"""So that a replica that was away for a moment needs no copy of everything."""


def server_file(config: FabricConfig, server: Server, folder: str, file: str) -> str:
    """Return the redis.conf of a server.

    Args:
        config: of the fabric.
        server: one of its servers.
        folder: for its data.
        file: name of the nodes file, for errors.

    Raises:
        ConfigError: a password cannot be read.
    """
    host, port = server.address
    bind = config.nodes[server.node].bind or (host,)
    ports = [f"port {port}"]
    if config.tls is not None:
        ports = [
            "port 0",
            f"tls-port {port}",
            f"tls-ca-cert-file {_quoted(config.tls.ca)}",
            f"tls-cert-file {_quoted(config.tls.certificate)}",
            f"tls-key-file {_quoted(config.tls.key)}",
            "tls-auth-clients optional",
            "tls-replication yes",
            "tls-cluster yes",
        ]
    milliseconds = round(1000 * config.cluster_node_timeout)
    lines = [
        f"# {server.node}, ring {server.ring + 1}: written by penstock fabric plan",
        *ports,
        f"bind {' '.join(bind)}",
        f"dir {_quoted(folder)}",
        "daemonize no",
        "cluster-enabled yes",
        f"cluster-port {port + BUS_PORTS}",
        f"cluster-announce-ip {host}",
        f"cluster-node-timeout {milliseconds}",
        "# One physical queue without a master does not stop the others.",
        "cluster-require-full-coverage no",
        "# Replicas stay where the rings want them.",
        "cluster-allow-replica-migration no",
        "appendonly yes",
        f"appendfsync {config.appendfsync}",
        'save ""',
        "# Messages are refused, not deleted, when memory is full.",
        f"maxmemory {config.maxmemory}",
        "maxmemory-policy noeviction",
        f"repl-backlog-size {_BACKLOG}",
        "repl-diskless-sync-delay 0",
        *_users(config, file),
    ]
    return "\n".join([*lines, ""])


def _users(config: FabricConfig, file: str) -> list[str]:
    lines = []
    if config.admin_password_file is not None:
        password = _password(config.admin_password_file, "admin_password_file", file)
        lines += [f"requirepass {_quoted(password)}", f"masterauth {_quoted(password)}"]
    if config.user is not None and config.password_file is not None:
        password = _password(config.password_file, "password_file", file)
        digest = hashlib.sha256(password.encode()).hexdigest()
        keys = f"~{config.prefix}:* &{config.prefix}:*"
        lines.append(f"user {config.user} on #{digest} {keys} {QUEUE_USER_RULES}")
    return lines


def _password(password_file: str, key: str, file: str) -> str:
    try:
        password = read_password(password_file)
    except EngineStartError as error:
        problem = ConfigProblem(key, str(error), "a file that can be read")
        raise ConfigError(file, [problem]) from error
    if not password or "\x00" in password:
        problem = ConfigProblem(key, f"no password in {password_file}", "one in its first line")
        raise ConfigError(file, [problem])
    return password


def _quoted(text: str) -> str:
    """Return a text as redis.conf takes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'


def unit_file(config: FabricConfig) -> str:
    """Return the unit of systemd of which each server is an instance, called as its port."""
    return f"""\
# Written by penstock fabric plan.
[Unit]
Description=Redis server %i of Penstock's fabric
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart=/usr/bin/redis-server {config.config_folder}/%i.conf --supervised systemd
User=redis
Group=redis
UMask=0077
LimitNOFILE=65535
Restart=on-failure
RestartSec=1
TimeoutStopSec=60
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
ReadWritePaths={config.folder}

[Install]
WantedBy=multi-user.target
"""


def script(config: FabricConfig, name: str) -> str:
    """Return a script that installs and starts the servers of a machine."""
    ports = [str(server.address[1]) for server in config.servers_of(name)]
    folder, config_folder = config.folder, config.config_folder
    folders = " ".join(f"{folder}/{port}" for port in ports)
    files = " ".join(f"{port}.conf" for port in ports)
    units = " ".join(f"penstock-fabric@{port}" for port in ports)
    return f"""\
#!/bin/sh
{_SCRIPT_HEAD}{name}: run it there as root, beside the other files.
# redis-server and the user redis are those of the system's package.
set -eu
cd -- "$(dirname -- "$0")"
install -d -o redis -g redis -m 750 {folder} {folders}
install -d -m 755 {config_folder}
install -o redis -g redis -m 400 {files} {config_folder}
install -m 644 {UNIT} /etc/systemd/system
systemctl daemon-reload
systemctl enable --now {units}
"""


def policy_part(config: FabricConfig, name: str | None = None) -> str:
    """Return the part of a policy file with which brokers and gateways use the fabric.

    Args:
        config: of the fabric.
        name: machine on which they run; None for another one.
    """
    keys = config.redis_keys()
    if name is not None:
        keys["local_nodes"] = [named(server.address) for server in config.servers_of(name)]
    policy = {"plugins": {"queue": {"engine": "redis", "redis": keys}}}
    return _POLICY_HEAD + yaml.safe_dump(policy, sort_keys=False)


def all_files(config: FabricConfig, file: str) -> Mapping[Path, str]:
    """Return each file of all machines by its path, in a folder for each machine.

    Args:
        config: of the fabric.
        file: name of the nodes file, for errors.

    Raises:
        ConfigError: a password cannot be read.
    """
    found = {}
    for name in config.nodes:
        for server in config.servers_of(name):
            port = server.address[1]
            folder = f"{config.folder}/{port}"
            found[Path(name) / f"{port}.conf"] = server_file(config, server, folder, file)
        found[Path(name) / UNIT] = unit_file(config)
        found[Path(name) / POLICY] = policy_part(config, name)
        found[Path(name) / SCRIPT] = script(config, name)
    return found | {Path(POLICY): policy_part(config)}


def write_files(files: Mapping[Path, str], folder: Path) -> None:
    """Write files that only their owner may read: those of servers hold passwords.

    Raises:
        ConfigError: the folder cannot be written to, or has a file that was not written here.
            Nothing is written then.
    """
    try:
        for path in files:
            target = folder / path
            if target.exists():
                head = target.read_bytes()[:_HEAD_BYTES].decode(errors="replace")
                if head and not any(each in head for each in _HEADS):
                    raise ConfigError(str(target), [_NOT_OURS])
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            mode = 0o700 if path.name == SCRIPT else 0o600
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "w", encoding="utf-8") as writer:  # noqa: PTH123 (of a descriptor)
                writer.write(text)
    except OSError as error:
        problem = ConfigProblem("file", f"{error.strerror}", "a folder that can be written to")
        raise ConfigError(str(error.filename or folder), [problem]) from error
