"""Tells the broker behind the proxy who a client is.

A client's network connection and its TLS end at the proxy, so that the broker sees the proxy's
address and certificate. The proxy says who each client is in a header of the PROXY protocol or in
user properties of CONNECT. So the broker's log, limits and access control can distinguish clients.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from penstock.broker.mqtt.enums import ProtocolVersion
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.proxy_header import Endpoint, write_proxy_header

ADDRESS_PROPERTY: Final = "penstock-client-address"
CERTIFICATE_PROPERTY: Final = "penstock-client-certificate"

_OURS: Final = frozenset({ADDRESS_PROPERTY, CERTIFICATE_PROPERTY})


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """What the proxy knows of a client's connection.

    Attributes:
        source: (address, port) of the client; None on a Unix socket.
        destination: (address, port) that it has connected to; None on a Unix socket.
        tls_version: such as ``TLSv1.3``; None without TLS.
        certificate_name: common name of its verified certificate, or None.
    """

    source: Endpoint | None = None
    destination: Endpoint | None = None
    tls_version: str | None = None
    certificate_name: str | None = None

    def header(self) -> bytes:
        """Return a header of the PROXY protocol, version 2.

        Raises:
            ProxyHeaderError: the certificate's name is too long for it.
        """
        return write_proxy_header(
            self.source,
            self.destination,
            tls_version=self.tls_version,
            common_name=self.certificate_name,
        )

    def told_in(self, connect: Connect) -> Connect:
        """Return a CONNECT whose user properties say who the client is.

        Properties of these names that the client has set itself are removed. A CONNECT before
        MQTT 5.0 has no properties and is returned unchanged.
        """
        if connect.protocol_version != ProtocolVersion.MQTT_5:
            return connect
        of_client = connect.properties.get("user_property", ())
        told = [(name, value) for name, value in of_client if name not in _OURS]
        if self.source is not None:
            host, port = self.source
            told.append((ADDRESS_PROPERTY, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        if self.certificate_name is not None:
            told.append((CERTIFICATE_PROPERTY, self.certificate_name))
        properties = {**connect.properties, "user_property": told}
        if not told:
            del properties["user_property"]
        return dataclasses.replace(connect, properties=properties)
