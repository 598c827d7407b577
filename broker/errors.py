"""The errors of Penstock in one tree; a peer's fault and our own are different types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code


class PenstockError(Exception):
    """Root of every error that Penstock raises on purpose.

    Attributes:
        exit_status: of a program that it ends.
    """

    exit_status: ClassVar[int] = 2


class PeerError(PenstockError):
    """A peer broke the protocol; its connection closes with `reason_code`.

    Attributes:
        reason_code: MQTT 5 reason code, 0x80 or above.
        detail: the text about what was read and what is allowed.
    """

    reason_code = ReasonCode.UNSPECIFIED_ERROR

    def __init__(self, message: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(message)
        self.detail = message
        if reason_code is not None:
            self.reason_code = reason_code

    def __str__(self) -> str:
        """Name the reason code first, then the detail."""
        return f"{describe_reason_code(self.reason_code)}: {super().__str__()}"


class MalformedPacketError(PeerError):
    """A packet that cannot be parsed (MQTT 5.0 section 1.2, Malformed Packet)."""

    reason_code = ReasonCode.MALFORMED_PACKET


class ProtocolError(PeerError):
    """A packet that can be parsed but not allowed here (MQTT 5.0 section 1.2)."""

    reason_code = ReasonCode.PROTOCOL_ERROR


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a policy file.

    Attributes:
        path: keys from the root, joined by dots, such as ``plugins.withholding.threshold_s``.
        read: the value there, as text.
        allowed: the values that are allowed there.
    """

    path: str
    read: str
    allowed: str

    def __str__(self) -> str:
        """Return the problem on one line."""
        return f"{self.path}: read {self.read}; allowed: {self.allowed}"


class ConfigError(PenstockError):
    """A policy file that cannot be used; programs print it and end with status 2.

    Attributes:
        file: name of the file as the user gave it.
        problems: every mistake that was found, at least one.
    """

    def __init__(self, file: str, problems: list[ConfigProblem]) -> None:
        super().__init__("\n".join(f"{file}: {problem}" for problem in problems))
        self.file = file
        self.problems = problems
