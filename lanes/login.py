"""How commands of ``penstock`` come to an MQTT broker: its address, a user, files of TLS."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.broker.config.checked_yaml import read_text
from penstock.broker.config.command_line import url_parts
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from paho.mqtt.client import Client

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class MqttError(PenstockError):
    """The broker cannot be reached, or refuses something; status 2."""


def broker_address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a broker.

    Raises:
        MqttError: the URL has another form.
    """
    scheme, host, port, path = url_parts(url)
    if scheme not in PORTS or not host or path.strip("/"):
        raise MqttError(
            f"--url: read {url!r}; allowed: mqtt://HOST:PORT, or mqtts://HOST:PORT with TLS"
        )
    return scheme, host, port or PORTS[scheme]


@dataclass(frozen=True, slots=True)
class Login:
    """Who connects, and what the broker's certificate is checked by; fields are options."""

    username: Annotated[
        str | None,
        typer.Option(help="User name; the password is that of a file or of PENSTOCK_PASSWORD."),
    ] = None
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the password.")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the authority of the broker.")
    ] = None
    cert_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a certificate to show.")
    ] = None
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with its private key.")
    ] = None

    def prepare(self, client: Client, scheme: str) -> None:
        """Give a client the user, and TLS where the scheme of its broker's URL has it.

        Raises:
            PenstockError: a file cannot be used.
        """
        if self.username is not None:
            client.username_pw_set(self.username, self._password())
        if scheme == "mqtts":
            ca, cert, key = (
                None if file is None else str(file)
                for file in (self.ca_file, self.cert_file, self.key_file)
            )
            try:
                client.tls_set(ca, cert, key)
            except (OSError, ValueError) as error:
                raise MqttError(f"--ca-file, --cert-file, --key-file: {error}") from error

    def _password(self) -> str | None:
        if self.password_file is None:
            return os.environ.get("PENSTOCK_PASSWORD")
        warn_of_readers("--password-file", self.password_file)
        try:
            lines = read_text(self.password_file).splitlines()
        except ConfigError as error:
            raise MqttError(f"--password-file: {error}") from error
        if not lines or not lines[0]:
            raise MqttError(f"--password-file: read {self.password_file}, empty; allowed: a line")
        return lines[0]
