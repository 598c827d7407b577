"""Route targets in the test's hands."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.extensions import MessageSink, Receipt, SinkCounts
from penstock.broker.message import Message


class HoldingSink(MessageSink):
    """A sink that answers for a message when the test lets it.

    Attributes:
        messages: what it was given.
        receipts: those that are not settled, oldest first; None for a message of QoS 0.
        error: raised for each message; None for no fault.
    """

    def __init__(self, *topic_filters: str, name: str = "sink") -> None:
        self.name = name
        self.topic_filters: Sequence[str] = topic_filters or ("q/#",)
        self.counts = SinkCounts()
        self.messages: list[Message] = []
        self.receipts: list[Receipt | None] = []
        self.error: Exception | None = None

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Keep both until the test settles."""
        if self.error is not None:
            raise self.error
        self.messages.append(message)
        self.receipts.append(receipt)

    def settle(self, reason_code: int = 0) -> None:
        """Answer for the oldest message that is not answered."""
        receipt = self.receipts.pop(0)
        assert receipt is not None
        receipt.settle(reason_code)
