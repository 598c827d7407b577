"""What an uplink concludes from the ends of its connections."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.edge_proxy.uplink.suspects import (
    ASIDE_SECONDS,
    CAREFUL_SECONDS,
    RECENT_SECONDS,
    End,
    SentItem,
    Suspects,
)

ONE, OTHER = SentItem("message", "a", 1), SentItem("message", "b", 2)
QOS_0 = SentItem("qos0", "c")


class Uplink:
    """What an uplink has told of its connections.

    Attributes:
        suspects: told of them.
        now: monotonic seconds.
    """

    def __init__(self, *, has_codes: bool = False) -> None:
        self.now = 0.0
        self.suspects = Suspects(lambda: self.now, has_codes=has_codes)

    def ends(
        self,
        *under_way: SentItem,
        code: int = 0,
        is_closed: bool = True,
        has_answered: bool = False,
        is_prompt: bool = True,
        is_short: bool = False,
    ) -> SentItem | None:
        """Let a connection be accepted, and end."""
        self.suspects.accepted()
        end = End(is_closed, code, under_way, has_answered, is_prompt, is_short)
        return self.suspects.ended(end)

    def aside(self, things: Sequence[SentItem] = (ONE, OTHER, QOS_0)) -> list[SentItem]:
        """Return what is set aside."""
        return [thing for thing in things if self.suspects.is_aside(thing)]


@pytest.mark.parametrize("code", [0, 0x81])
def test_what_ends_a_connection_twice_is_set_aside(code: int) -> None:
    """Several messages were under way at first, and one alone at last."""
    uplink = Uplink()
    assert uplink.ends(ONE, OTHER, code=code) is None
    assert uplink.suspects.is_careful
    for n_refusals in (1, 2):
        assert uplink.ends(OTHER, code=code) == OTHER
        assert uplink.aside() == [OTHER] * (n_refusals == 2)
    uplink.suspects.accepted()
    for thing in (OTHER, ONE):
        assert uplink.suspects.is_careful
        uplink.suspects.answered(thing)
    assert uplink.suspects.is_idle


def test_a_reason_code_that_tells_of_no_message_is_no_refusal() -> None:
    """Such as that of a broker that shuts down, or of a client that takes over."""
    uplink = Uplink()
    for _ in range(5):
        assert uplink.ends(ONE, code=0x8B) is None
    assert uplink.suspects.is_idle


def test_an_end_after_an_answer_is_none_unless_connections_are_short_again_and_again() -> None:
    """A network that was lost while something was under way is no refusal of that."""
    uplink = Uplink()
    for _ in range(5):
        uplink.ends(ONE, OTHER, has_answered=True)
    assert uplink.suspects.is_idle
    uplink.ends(QOS_0, has_answered=True, is_short=True)
    assert uplink.suspects.is_careful


def test_an_end_without_a_word_is_a_refusal_where_tcp_has_acknowledged_the_message() -> None:
    """What the network has lost in the middle of a message makes later ends less credible."""
    uplink = Uplink()
    uplink.ends(ONE)
    for _ in range(3):
        assert uplink.ends(ONE, is_prompt=False) is None
    for _ in range(4):
        assert uplink.ends(ONE) == ONE
        assert not uplink.aside()
    assert uplink.ends(ONE) == ONE
    assert uplink.aside() == [ONE]


@pytest.mark.parametrize("kind", ["silent", "unreachable"])
def test_ends_of_another_kind_count_for_a_while(kind: str) -> None:
    """A broker that was away may have gone at that message."""
    uplink = Uplink()
    if kind == "silent":
        uplink.ends(ONE, is_closed=False)
    else:
        uplink.suspects.failed()
    uplink.ends(ONE)
    for _ in range(2):
        uplink.ends(ONE)
    assert not uplink.aside()
    uplink.now += RECENT_SECONDS + 1
    uplink.ends(ONE)
    assert uplink.aside() == [ONE]


def test_ends_of_another_kind_take_no_more_memory_than_those_of_late() -> None:
    """However long the cloud is away."""
    uplink = Uplink()
    for _ in range(1000):
        uplink.suspects.failed()
        uplink.now += RECENT_SECONDS / 10
    assert len(uplink.suspects._other_ends) < 12


def test_care_ends_with_the_answers_or_with_time() -> None:
    """What does not come again by itself is watched for a minute of a connection."""
    uplink = Uplink()
    uplink.ends(QOS_0)
    uplink.suspects.accepted()
    uplink.now += CAREFUL_SECONDS
    uplink.suspects.answered(ONE)
    assert not uplink.suspects.is_careful


def test_a_topic_of_qos_0_is_set_aside_for_a_while_and_a_message_until_it_is_answered() -> None:
    """The next message may have its packet identifier."""
    uplink = Uplink()
    for thing in (QOS_0, ONE):
        for _ in range(2):
            uplink.ends(thing, code=0x90)
    assert uplink.aside() == [ONE, QOS_0]
    uplink.suspects.answered(ONE)
    uplink.suspects.answered(QOS_0)
    assert uplink.aside() == [QOS_0]
    uplink.now += ASIDE_SECONDS
    assert not uplink.aside()
    assert uplink.suspects.is_idle


RETAINED = SentItem("message", "r", 3, is_retained=True)


def test_a_retained_message_is_tried_without_its_flag_after_as_many_refusals_as_set_it_aside() -> (
    None
):
    """Where it is refused without the flag, too, it is set aside after as many more."""
    uplink = Uplink()
    uplink.ends(RETAINED)
    uplink.suspects.failed()
    is_doubted = []
    for _ in range(3):
        uplink.ends(RETAINED)
        is_doubted.append(uplink.suspects.is_doubted(RETAINED))
    assert is_doubted == [False, False, True]
    for _ in range(2):
        uplink.ends(RETAINED)
        assert not uplink.aside([RETAINED])
    uplink.ends(RETAINED)
    assert uplink.aside([RETAINED])
    assert not uplink.suspects.retains_nothing


def test_mqtt_5_doubts_the_flag_by_its_reason_code_alone() -> None:
    """A broker that crashes at a message retains what it takes."""
    for code, is_doubted in ((0, False), (0x87, False), (0x9A, True)):
        uplink = Uplink(has_codes=True)
        uplink.ends(RETAINED, OTHER)
        for _ in range(2):
            uplink.ends(RETAINED, code=code)
            assert uplink.suspects.is_doubted(RETAINED) == is_doubted
        assert bool(uplink.aside([RETAINED])) != is_doubted


def test_a_broker_retains_nothing_for_a_while() -> None:
    """It, or the one behind another address, may take the flag later."""
    uplink = Uplink()
    uplink.suspects.flag_was_refused()
    assert uplink.suspects.retains_nothing
    uplink.now += ASIDE_SECONDS
    assert not uplink.suspects.retains_nothing


def test_things_are_named_for_the_log() -> None:
    """With what may have been the matter."""
    things = [
        SentItem("message", "a\tb", 1, 10, is_retained=True),
        SentItem("qos0", "a", n_bytes=1),
        SentItem("filter", "a/#"),
        SentItem("own", "state"),
    ]
    assert list(map(str, things)) == [
        "the message of topic 'a\\tb' (10 bytes, QoS 1 or 2, retained)",
        "the message of topic 'a' (1 bytes, QoS 0)",
        "the subscription to 'a/#'",
        "the uplink's own message of topic 'state'",
    ]
