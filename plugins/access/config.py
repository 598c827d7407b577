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
        allow_anonymous: clients without a user name may connect, and, where no file names users,
            clients with any user name.
        password_file: users, as mosquitto_passwd or ``penstock passwd`` write them. A user that is
            not in it is left to other plugins.
        acl_file: topics, in mosquitto's format; null allows every topic.
        scram_file: users of SCRAM-SHA-256, as ``penstock passwd --scram`` writes them.
        certificate_username: the user name is the Common Name (``cn``), the whole subject
            (``subject``) or the first subject alternative name of a kind (``san_dns``,
            ``san_email``, ``san_uri``) of the client's certificate, and no password is needed. A
            client whose certificate has none is refused, and so is one that proves by SCRAM to be
            another user. Null: certificates do not name users.
        username_as_client_id: the user name replaces the Client Identifier, so that no user can
            take over another's session; clients without one are refused.
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
        listeners: name of a listener to its rules, which replace those above completely.
    """

    listeners: dict[str, Rules] = field(default_factory=dict)

    def all_rules(self) -> list[Rules]:
        """Return the common rules and those of each listener."""
        return [self, *self.listeners.values()]
