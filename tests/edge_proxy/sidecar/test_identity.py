from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.proxy_header import ProxyHeader, read_proxy_header
from penstock.edge_proxy.sidecar.identity import ClientIdentity

CLIENT = ("203.0.113.9", 50_000)
OURS = ("10.0.0.1", 8883)


@pytest.mark.parametrize(
    "identity",
    [
        ClientIdentity(),
        ClientIdentity(CLIENT, OURS),
        ClientIdentity(CLIENT, OURS, "TLSv1.3"),
        ClientIdentity(CLIENT, OURS, "TLSv1.3", "pump-7"),
        ClientIdentity(None, None, "TLSv1.3", "pump-7"),
    ],
)
def test_the_header_says_what_is_known(identity: ClientIdentity) -> None:
    """Address, and the name of a certificate; a Unix socket has no address."""
    header = identity.header()
    address, port = identity.source or ("", 0)
    assert read_proxy_header(header) == ProxyHeader(
        len(header), address, port, identity.certificate_name
    )


def test_user_properties_of_connect() -> None:
    """Those of the client stay, but not under the names that are the proxy's."""
    connect = Connect(
        client_id="c",
        properties={
            "receive_maximum": 9,
            "user_property": [
                ("penstock-client-certificate", "admin"),
                ("site", "7"),
                ("penstock-client-address", "10.0.0.1:1"),
            ],
        },
    )
    assert ClientIdentity(CLIENT, OURS, "TLSv1.3", "pump-7").told_in(connect).properties == {
        "receive_maximum": 9,
        "user_property": [
            ("site", "7"),
            ("penstock-client-address", "203.0.113.9:50000"),
            ("penstock-client-certificate", "pump-7"),
        ],
    }
    told = ClientIdentity(("2001:db8::1", 1), OURS).told_in(Connect())
    assert told.properties == {"user_property": [("penstock-client-address", "[2001:db8::1]:1")]}


def test_what_a_client_claims_is_removed_where_nothing_is_known() -> None:
    """On a Unix socket there is neither address nor certificate."""
    claimed = Connect(properties={"user_property": [("penstock-client-address", "10.0.0.1:1")]})
    assert ClientIdentity().told_in(claimed) == Connect()


def test_a_connect_of_3_1_1_has_no_properties() -> None:
    """It passes as it is."""
    connect = Connect(protocol_version=4)
    assert ClientIdentity(CLIENT, OURS).told_in(connect) is connect
