"""MQTT 5 reason codes and their counterparts in MQTT 3.1.1."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ReasonCode(IntEnum):
    """Every reason code of MQTT 5.0, section 2.4."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


SUCCESS: Final = int(ReasonCode.SUCCESS)
"""The plain number, for each message of QoS 1 and 2: looking up a member of the enumeration and
comparing it takes 0.5 us, a number 0.02."""


CONNACK_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.SERVER_SHUTTING_DOWN: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
}
"""The MQTT 3.1.1 return code for each reason code of a CONNACK. A code that is missing here has no
counterpart in 3.1.1: the connection closes without a CONNACK."""

SUBACK_FAILURE_3_1_1: Final = 0x80
"""The return code for every refusal in an MQTT 3.1.1 SUBACK."""


def describe_reason_code(code: int) -> str:
    """Return a reason code as text with its number, such as ``quota exceeded (0x97)``.

    Args:
        code: 0 to 255; a value that MQTT does not define is named "unknown".
    """
    try:
        name = ReasonCode(code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown"
    return f"{name} (0x{code:02X})"
