"""The file that describes a fabric: its machines in the order of the circle, and their servers."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.checked_yaml import read_mapping, validate_config
from penstock.broker.config.key_types import STRICT, PositiveSize, Seconds
from penstock.plugins.queue.config import Name, RedisConfig
from penstock.plugins.queue.engines.redis.login import Address, Login, named
from penstock.plugins.queue.fabric.rings import COUNTER_ROTATING, RingQueue, Rings

BUS_PORTS: Final = 10_000
"""Above a server's port is that on which nodes talk to each other, as is Redis' default."""


def _checked_address(address: str) -> str:
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise ValueError("an IP address: the nodes of a cluster meet by these") from error
    return address


_Ip = Annotated[str, AfterValidator(_checked_address)]
_Port = Annotated[int, Field(ge=1, le=65_535 - BUS_PORTS)]
_Path = Annotated[str, Field(min_length=1)]
_AbsolutePath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")]
"""Units of systemd and redis.conf take it as it is."""


@dataclass(frozen=True, slots=True, config=STRICT)
class NodeConfig:
    """A machine; the keys under `nodes.NAME`.

    Attributes:
        address: IP address at which programs and the other machines reach it.
        bind: addresses that its servers listen on; `address` alone by default.
        port: of its first server; the others follow. None for that of the file.
    """

    address: _Ip
    bind: tuple[_Ip, ...] = ()
    port: _Port | None = None


@dataclass(frozen=True, slots=True, config=STRICT)
class NodeTls:
    """TLS of all servers; the keys under `tls`. Clients need no certificate.

    Attributes:
        ca: PEM file of the authorities that certificates are checked with.
        certificate: PEM file of the certificate, on each machine under this name.
        key: PEM file of its private key, without a passphrase.
    """

    ca: _AbsolutePath
    certificate: _AbsolutePath
    key: _AbsolutePath


class Server(NamedTuple):
    """A Redis process.

    Attributes:
        node: name of its machine.
        ring: that it belongs to, from 0.
        queue: that it has a copy of when the cluster is made. It is the home of the two that are
            the first of their machine, and stays it: the others are replicas and may move.
        address: of it.
    """

    node: str
    ring: int
    queue: RingQueue
    address: Address

    @property
    def is_home(self) -> bool:
        """Whether it is the master while all is well."""
        return self.queue.home == self.node

    def __str__(self) -> str:
        return f"{self.node} ({named(self.address)})"


@dataclass(frozen=True, slots=True, config=STRICT)
class FabricConfig:
    """The keys of the file.

    Attributes:
        nodes: machines by name, in the order of the circle.
        maxmemory: bytes of each server, of which a machine has two for each copy: 6 with 2
            replicas. At the limit messages are refused. Leave half of the machine's memory free
            for the children that write files and for replicas' buffers.
        replicas: of each master, each on a machine of its own.
        port: of the first server of each machine; the others follow.
        appendfsync: `everysec` may lose the last second when the power of all machines with a copy
            fails; `always` loses nothing and waits for the disk.
        cluster_node_timeout: seconds without an answer after which a server counts as dead.
        folder: for the data of the servers, on each machine.
        config_folder: for their files, on each machine.
        admin_password_file: file whose first line is the password of the user `default`, by which
            servers replicate and this program makes and changes the cluster; None for none, where
            all addresses are of this machine alone.
        user: ACL user of brokers and gateways, with no more rights than they need; None for
            `default`.
        password_file: file with its password.
        tls: certificates; None for plain connections.
        prefix: as in a policy file.
        min_replicas: as in a policy file.
    """

    nodes: dict[Name, NodeConfig]
    maxmemory: PositiveSize
    replicas: Annotated[int, Field(ge=1)] = 2
    port: _Port = 6379
    appendfsync: Literal["always", "everysec"] = "everysec"
    cluster_node_timeout: Seconds = 5.0
    folder: _AbsolutePath = "/var/lib/penstock-fabric"
    config_folder: _AbsolutePath = "/etc/penstock-fabric"
    admin_password_file: _Path | None = None
    user: Annotated[str, Field(pattern=r"^[^\s\x00]+$")] | None = None
    password_file: _Path | None = None
    tls: NodeTls | None = None
    prefix: Name = "penstock"
    min_replicas: Annotated[int, Field(ge=0)] = 1

    def __post_init__(self) -> None:
        """Refuse machines that no rings can be made of, and what could not be started."""
        self._check_ports(self.rings)
        if self.min_replicas > self.replicas:
            raise ValueError(
                f"min_replicas: read {self.min_replicas}; allowed: 0 to {self.replicas}, as many "
                "as replicas"
            )
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file, or neither")
        if self.user == "default":
            raise ValueError("user: read default; allowed: another one, or admin_password_file")
        self._check_passwords()

    def _check_ports(self, rings: Rings) -> None:
        """Refuse servers that could not listen; the rings have refused too few machines."""
        taken: dict[Address, str] = {}
        for server in (one for name in rings.nodes for one in self.servers_of(name)):
            host, port = server.address
            for one in (server.address, (host, port + BUS_PORTS)):
                if one[1] > 65_535:
                    raise ValueError(
                        f"nodes: read port {port} of {server.node}; allowed: 1 to "
                        f"{65_535 - BUS_PORTS}"
                    )
                if one in taken:
                    raise ValueError(
                        f"nodes: read {named(one)} for {taken[one]} and for {server.node}; "
                        "allowed: each port of an address once"
                    )
                taken[one] = server.node

    def _check_passwords(self) -> None:
        """Refuse servers that everybody could write to."""
        if self.admin_password_file is None:
            for name, node in self.nodes.items():
                for address in (node.address, *node.bind):
                    if not ipaddress.ip_address(address).is_loopback:
                        raise ValueError(
                            f"nodes: read {address} of {name}, which others reach; allowed: a "
                            "loopback address, or admin_password_file"
                        )

    @property
    def rings(self) -> Rings:
        """Return the placement of masters and replicas on machines."""
        return Rings(list(self.nodes), COUNTER_ROTATING, self.replicas + 1)

    def servers(self) -> list[Server]:
        """Return all servers, in the order of the machines and their ports."""
        return [server for name in self.nodes for server in self.servers_of(name)]

    def servers_of(self, name: str) -> list[Server]:
        """Return the servers of a machine: a master of each ring, then replicas."""
        node = self.nodes[name]
        first = self.port if node.port is None else node.port
        found: list[Server] = []
        names, rings = list(self.nodes), self.rings
        for place in range(rings.copies):
            for ring, step in enumerate(rings.directions):
                home = names[(names.index(name) - step * place) % len(names)]
                address = (node.address, first + len(found))
                found.append(Server(name, ring, RingQueue(ring, home), address))
        return found

    def login(self) -> Login:
        """Return how this program connects to servers."""
        ca = None if self.tls is None else self.tls.ca
        return Login(None, self.admin_password_file, ca)

    def redis_keys(self) -> dict[str, object]:
        """Return the keys under `plugins.queue.redis` of a policy file for this fabric."""
        keys: dict[str, object] = {
            "cluster": [named(self.servers_of(name)[0].address) for name in self.nodes],
            "min_replicas": self.min_replicas,
        }
        default = RedisConfig()
        if self.prefix != default.prefix:
            keys["prefix"] = self.prefix
        if self.user is not None:
            keys["user"] = self.user
        password_file = self.password_file or self.admin_password_file
        if password_file is not None:
            keys["password_file"] = str(Path(password_file).resolve())
        if self.tls is not None:
            keys["tls"] = {"ca": self.tls.ca}
        # A takeover takes a second or two longer than the detection.
        retry_seconds = 2 * self.cluster_node_timeout + 5
        if retry_seconds > default.retry_seconds:
            keys["retry_seconds"] = retry_seconds
        return keys


def read_nodes_file(path: str | Path) -> FabricConfig:
    """Return what a file describes.

    Raises:
        ConfigError: the file cannot be used.
    """
    return validate_config(FabricConfig, read_mapping(path), str(path), "")
