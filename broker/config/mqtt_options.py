"""The features of MQTT that the broker offers: the keys under `mqtt` of the policy file.

All features are offered by default. An operator disables what a fleet must not use, or redirects a
fleet to another server. CONNACK says so to MQTT 5 clients, and a client that uses a disabled
feature is refused with the reason code of the specification.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT, Seconds
from penstock.broker.errors import PeerError
from penstock.broker.message import SizeClass
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import validate_topic

CLIENT_ID_MARK: Final = "{client_id}"
"""The placeholder of the Client Identifier in `response_information`."""

_AliasMaximum = Annotated[int, Field(ge=0, le=65_535)]


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class MqttOptions:
    """The features of MQTT that the broker offers; the keys under `mqtt`.

    Attributes:
        allow_mqtt31: accept clients of MQTT 3.1.
        allow_empty_client_id: assign a Client Identifier to a client that sends an empty one, else
            refuse it (0x85).
        topic_alias_maximum: Topic Aliases of an MQTT 5 client, of up to 64 KiB each; 0 for none.
        outgoing_topic_aliases: Topic Aliases towards one subscriber, of some 200 bytes each; 0 for
            none.
        maximum_qos: the highest QoS of publishers and subscriptions.
        retain_available: clients may publish with RETAIN.
        wildcard_subscription_available: clients may subscribe with ``+`` and ``#``.
        subscription_identifiers_available: clients may give their subscriptions identifiers.
        shared_subscription_available: clients may subscribe to ``$share/NAME/FILTER``.
        server_reference: other servers, as ``host:port`` separated by spaces, for MQTT 5 clients at
            a redirection or a stop (MQTT 5.0, 4.11).
        redirect: refuse every client: ``temporary`` (use another server) or ``permanent`` (server
            moved).
        response_information: prefix of response topics for clients that ask, ``{client_id}`` in it
            being their Client Identifier.
        reveal_refusals: tell MQTT 5 clients "not authorized", by which they can find out which
            topics are forbidden; else "unspecified error".
        check_payload_format: refuse a message that wrongly declares its payload as UTF-8.
        sizes_by_client: pattern of client ids (``*``, ``?``, ``[...]``) to the size of their
            messages, unless their SUBSCRIBE names one; None for both. The first match decides,
            before the listener.
        lane_takeover_seconds: time until one of a client's two lanes takes over from the absent
            other.
        lane_give_up_seconds: time until unacknowledged messages of an absent lane no longer hold
            back later ones of their topics; order is lost then.
    """

    allow_mqtt31: bool = True
    allow_empty_client_id: bool = True
    topic_alias_maximum: _AliasMaximum = 64
    outgoing_topic_aliases: _AliasMaximum = 64
    maximum_qos: Literal[0, 1, 2] = 2
    retain_available: bool = True
    wildcard_subscription_available: bool = True
    subscription_identifiers_available: bool = True
    shared_subscription_available: bool = True
    server_reference: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    redirect: Literal["temporary", "permanent"] | None = None
    response_information: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    reveal_refusals: bool = True
    check_payload_format: bool = False
    sizes_by_client: dict[str, SizeClass | None] = Field(default_factory=dict)
    lane_takeover_seconds: Seconds = 10.0
    lane_give_up_seconds: Seconds = 60.0

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.redirect is not None and self.server_reference is None:
            raise ValueError("redirect only with a server_reference")
        if self.lane_give_up_seconds < self.lane_takeover_seconds:
            raise ValueError("lane_give_up_seconds of at least lane_takeover_seconds")
        information = self.response_information
        if information is not None:
            try:
                validate_topic(information)
            except PeerError:
                raise ValueError("response_information without +, # and null") from None
            if CLIENT_ID_MARK not in information:
                raise ValueError(f"response_information with {CLIENT_ID_MARK} in it")

    def told(self, reason_code: int) -> int:
        """Return the reason code to send to an MQTT 5 client in place of the true one."""
        if reason_code == ReasonCode.NOT_AUTHORIZED and not self.reveal_refusals:
            return ReasonCode.UNSPECIFIED_ERROR  # "does not wish to reveal the reason" (3.9.3)
        return reason_code

    def sizes_for(self, client_id: str, of_listener: SizeClass | None) -> SizeClass | None:
        """Return the size class that a client subscribes to where its SUBSCRIBE names none."""
        for pattern, sizes in self.sizes_by_client.items():
            if fnmatchcase(client_id, pattern):
                return sizes
        return of_listener

    def response_information_for(self, client_id: str) -> str | None:
        """Return the Response Information for a client (MQTT 5.0, 4.10.1).

        None for no answer, such as for a Client Identifier with a wildcard: no topic can contain
        it.
        """
        if self.response_information is None or "+" in client_id or "#" in client_id:
            return None
        return self.response_information.replace(CLIENT_ID_MARK, client_id)
