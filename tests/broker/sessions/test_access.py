from __future__ import annotations

from collections.abc import Awaitable

import pytest

from penstock.broker.access_control import (
    PUBLISH,
    SUBSCRIBE,
    Accepted,
    AccessControl,
    Action,
    Admittance,
    ConnectAttempt,
    Refused,
    SessionView,
)
from penstock.broker.mqtt.packets import ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.connecting import close_if_revoked
from penstock.broker.sessions.access import AlsoAsking, ExceptLocal, SeveralSources, combine
from tests.helpers.access import Access, finish
from tests.helpers.riddle import Riddle
from tests.helpers.virtual import VirtualBroker, VirtualClient


class Source(Access):
    """Access control that gives one answer to every CONNECT."""

    def __init__(self, answer: Admittance, **checks: bool) -> None:
        super().__init__(**checks)
        self.answer = answer


def connected(*sources: Source, client_id: str = "c") -> VirtualClient:
    """Return a client that has asked to connect, after every wait."""
    client = VirtualClient(VirtualBroker(access=combine(sources)))
    client.send(Connect(client_id=client_id, username="sent"))
    finish(client)
    return client


def test_without_a_source_everybody_is_let_in() -> None:
    """The listeners are then of this machine alone."""
    assert combine([]) is None


def test_clients_of_the_brokers_own_process_are_not_judged_and_others_are() -> None:
    """Their client id says who they are, as no other client may have it."""
    inner = Access(subscribe=False)
    inner.refused = {("publish", "t")}
    access = ExceptLocal(inner)
    assert (access.checks_publish, access.checks_subscribe) == (True, False)
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker)
    client.send(Connect(client_id="c"))
    session = broker.core.sessions.get("c")
    assert session is not None
    assert len(inner.attempts) == 1
    assert access.authorize(session, "t", PUBLISH) is False
    session.client_id = "$uplink/a/down"
    assert access.authorize(session, "t", PUBLISH) is True


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("refused", ["t", "parts/t"])
def test_a_second_topic_must_be_allowed_too(refused: str, waits: bool) -> None:  # noqa: FBT001
    """Whichever of both is refused, and whether answers take a wait or not."""
    inner = Access(receive=False)
    inner.waits = waits
    inner.refused = {("publish", refused)}
    access = AlsoAsking(inner, lambda topic: topic[6:] if topic.startswith("parts/") else None)
    assert (access.checks_publish, access.checks_receive) == (True, False)
    session = VirtualBroker().connect().session
    topics = ("parts/t", "parts/u", "u")
    allowed = [run(access.authorize(session, topic, PUBLISH)) for topic in topics]
    assert allowed == [False, True, True]


class Passwords(AccessControl):
    """Access control that says who may connect, and nothing of topics."""

    def authenticate(self, attempt: ConnectAttempt) -> bool:
        """Let everybody in who brings a password."""
        return attempt.password is not None


class Topics(AccessControl):
    """Access control that says what may be done with topics, and nothing of who may connect."""

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool:
        """Allow one topic."""
        return bool(session and action) and topic == "open"


@pytest.mark.parametrize("sources", [[Passwords()], [Passwords(), Passwords()]])
def test_a_source_without_authorize_is_not_asked_about_topics(sources: list[AccessControl]) -> None:
    """Messages then go the short way."""
    access = combine(sources)
    assert access is not None
    assert not any((access.checks_publish, access.checks_subscribe, access.checks_receive))


def test_a_source_with_authorize_is_asked_about_everything_unless_it_says_otherwise() -> None:
    """A rule that was written is a rule that holds."""
    access = combine([Topics(), Passwords()])
    broker = VirtualBroker(access=access)
    client = broker.connect("c", username="u", password=b"p")
    assert [client.subscribe(topic) for topic in ("open", "shut")] == [0, 0x87]


def test_where_authenticators_alone_decide_others_are_refused() -> None:
    """A client that names no authentication method has not been let in by anything."""
    riddle = Riddle()
    broker = VirtualBroker(access=combine([], [riddle]), authenticators=[riddle])
    for username in (None, "sent"):
        client = VirtualClient(broker)
        client.send(Connect(client_id="c", username=username))
        finish(client)
        assert client.take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("waiting", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("answers", "is_let_in"),
    [
        ((True, True), True),
        ((True, None), True),
        ((None, True), True),
        ((None, None), False),
        ((True, False), False),
        ((False, True), False),
        ((False, None), False),
        ((Accepted(), None), True),
        ((Accepted(), False), False),
    ],
)
def test_one_source_must_let_a_client_in_and_none_refuse_it(
    answers: tuple[Admittance, ...], waiting: tuple[int, ...], *, is_let_in: bool
) -> None:
    """This holds whether a source answers at once or after a wait."""
    sources = [Source(answer) for answer in answers]
    for index in waiting:
        sources[index].waits = True
    connack = connected(*sources).take(ConnAck)
    assert connack.reason_code == (0 if is_let_in else ReasonCode.NOT_AUTHORIZED)


def test_a_source_alone_that_says_nothing_lets_nobody_in() -> None:
    """Not mine is no answer."""
    assert connected(Source(None)).take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED


def test_the_first_names_that_a_source_gives_hold() -> None:
    """A certificate's name, say, stands in place of what CONNECT brought."""
    client = connected(Source(True), Source(Accepted("first", "id")), Source(Accepted("second")))
    assert client.take(ConnAck).reason_code == 0
    assert client.session.username == "first"
    assert client.session.client_id == "id"
    plain = connected(Source(True))
    assert (plain.session.username, plain.session.client_id) == ("sent", "c")
    assert plain.session.listener == "default"


@pytest.mark.parametrize("waiting", [(), (0,), (1,)])
def test_a_refusal_says_why(waiting: tuple[int, ...]) -> None:
    """As its source does; the others are not asked any more."""
    refused = Refused(ReasonCode.BANNED, "wrong password")
    sources = [Source(True), Source(refused), Source(True)]
    for index in waiting:
        sources[index].waits = True
    assert connected(*sources).take(ConnAck).reason_code == ReasonCode.BANNED
    assert not sources[2].attempts


@pytest.mark.parametrize("gone", [(), (0,), (1,)])
def test_a_client_stays_as_long_as_each_source_stands_by_it(gone: tuple[int, ...]) -> None:
    """One that names nobody may stand by it, too."""
    held = [True, True]
    client = connected(
        Source(Accepted(holds=lambda: held[0])),
        Source(Accepted("first", holds=lambda: held[1])),
        Source(True),
    )
    assert client.session.username == "first"
    for index in gone:
        held[index] = False
    close_if_revoked(client.connection.client, 0.0)
    client.broker.settle()
    assert client.is_lost is bool(gone)


def test_only_sources_that_check_an_action_are_asked_for_it() -> None:
    """And the broker asks nobody where none checks."""
    asked = Source(True, publish=True, subscribe=False, receive=False)
    asked.refused = {("publish", "t"), ("subscribe", "t")}
    sources = SeveralSources([asked, Source(True, publish=False, subscribe=False, receive=False)])
    assert (sources.checks_publish, sources.checks_subscribe, sources.checks_receive) == (
        True,
        False,
        False,
    )
    session = connected(Source(True)).session
    assert sources.authorize(session, "t", SUBSCRIBE) is True
    assert sources.authorize(session, "t", PUBLISH) is False
    assert sources.authorize(session, "u", PUBLISH) is True


@pytest.mark.parametrize("waiting", [(0,), (1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("refusing", [(), (0,), (1,), (2,)])
def test_every_source_must_agree_to_a_topic(
    waiting: tuple[int, ...], refusing: tuple[int, ...]
) -> None:
    """This holds whether a source answers at once or after a wait."""
    sources = [Source(True) for _ in range(3)]
    for index in waiting:
        sources[index].waits = True
    for index in refusing:
        sources[index].refused = {("publish", "t")}
    answer = SeveralSources(sources).authorize(connected(Source(True)).session, "t", PUBLISH)
    assert isinstance(answer, bool | Awaitable)
    assert run(answer) is not bool(refusing)


def run(answer: bool | Awaitable[bool]) -> bool:  # noqa: FBT001 (an answer, not an option)
    """Return what an answer comes to."""
    if isinstance(answer, bool):
        return answer
    waited = answer.__await__()
    while True:
        try:
            next(waited)
        except StopIteration as end:
            return bool(end.value)
