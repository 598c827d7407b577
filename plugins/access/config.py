"""The keys under `access` in a policy file."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT

CertificateName = Literal["cn", "subject", "san_dns", "san_email", "san_uri"]
FileName = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Rules:
    """Rules for who may connect on a listener, and which topics they may use.

    Relative file names start at the directory in which the broker was started.

    Attributes:
        allow_anonymous: clients without a user name may connect; where no file names users, clients
            with any.
        password_file: users, as mosquitto_passwd or ``penstock passwd`` write them. Others are left
            to other plugins.
        acl_file: topics, in mosquitto's format; null allows every topic.
        scram_file: users of SCRAM-SHA-256, as ``penstock passwd --scram`` writes them.
        certificate_username: what of the client's certificate is the user name, without a password:
            the Common Name (``cn``), the ``subject`` or the first subject alternative name of a
            kind (``san_dns``, ``san_email``, ``san_uri``). A client that lacks it, or proves by
            SCRAM to be another user, is refused.
        username_as_client_id: the user name replaces the Client Identifier, which protects sessions
            from other users; clients without one are refused.
    """

    allow_anonymous: bool = False
    password_file: FileName | None = None
    acl_file: FileName | None = None
    scram_file: FileName | None = None
    certificate_username: CertificateName | None = None
    username_as_client_id: bool = False

    def files(self) -> list[str]:
        """Return each configured file, as ``key file``."""
        keys = ("password_file", "acl_file", "scram_file")
        return [f"{key} {getattr(self, key)}" for key in keys if getattr(self, key) is not None]


@dataclass(frozen=True, slots=True, config=STRICT)
class AccessConfig(Rules):
    """The plugin's keys: rules for every listener, and other rules for some.

    Attributes:
        listeners: name of a listener to its rules, which replace those above.
    """

    listeners: dict[str, Rules] = field(default_factory=dict)

    def all_rules(self) -> list[Rules]:
        """Return the common rules and those of each listener."""
        return [self, *self.listeners.values()]
