"""QoS 1 messages that are on their way to a durable session, and that the journal has not noted.

Theory of operation. On a busy broker a commit costs more than all else that is done for a message
that came by itself, and its subscriber acknowledges it soon. So it is kept in the subscriber's
inflight window alone (`penstock.broker.fast_paths.message_run.LoneMessage`). Its publisher has no
PUBACK yet, so nothing is lost if the process ends. When the subscriber acknowledges the message,
its publisher is answered, and nothing was noted, counted or written. The driver looks at such
messages now and then: one that is there at the second look is *late*. It is noted as a run of one
then, with all that are on their way to the same session, so that the rows keep the order, and the
next commit has it. The same is done as soon as anything else is noted for the session, or its
client leaves.

A subscriber may be far away. A publisher that sends one message at a time would then wait as long
for each, and not for a short commit. So messages are left out only while the broker is busy
(`is_busy`), and for subscribers with a short RTT (`is_near`). That is the RTT to a load balancer
where there is one, and the subscriber may be slow itself: after a late message the next ones are
noted at once, `NOTED_MESSAGES` of them, and twice as many after each further one of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.durable.session_journal import SessionJournal
    from penstock.broker.sessions.client import PublishReceipt

NOTED_MESSAGES: Final = 16
"""So many messages of a session whose client was late for the first time are noted as soon as they
are sent: their publishers then wait for a short commit."""

MOST_NOTED_MESSAGES: Final = 16_384
"""The same for a client that is always late."""


class LoneMessages:
    """What is owed to the publishers of messages that are not noted.

    Attributes:
        is_busy: the broker is busy enough to spare it commits; the driver says so.
        new: receipts of messages that were sent since the last look, with the journals of the
            sessions that they were sent to.
        old: the same for those that were there at the last look.
        is_looking: the next look is due some time later.
        is_near: says of the file descriptor of a connection whether its RTT is short.
    """

    __slots__ = ("_look_later", "is_busy", "is_looking", "is_near", "new", "old")

    def __init__(self, look_later: Callable[[], None], is_near: Callable[[int], bool]) -> None:
        """Begin without any; `look_later` has `look` called some time later."""
        self.is_near = is_near
        self.is_busy = False
        self.is_looking = False
        self.new: dict[PublishReceipt, SessionJournal] = {}
        self.old: dict[PublishReceipt, SessionJournal] = {}
        self._look_later = look_later

    def __len__(self) -> int:
        return len(self.new) + len(self.old)

    def look_soon(self) -> None:
        """Have them looked at, as there was none before."""
        self.is_looking = True
        self._look_later()

    def look(self) -> bool:
        """Note what was there at the last look already; return whether anything was."""
        late = list(dict.fromkeys(self.old.values()))
        for own in late:
            own.lone_are_late()
        self.old, self.new = self.new, self.old  # the old ones are all noted
        self.is_looking = bool(self.old)
        if self.is_looking:
            self._look_later()
        return bool(late)

    def note_all(self) -> None:
        """Note all of them."""
        for own in dict.fromkeys([*self.old.values(), *self.new.values()]):
            own.note_lone()
