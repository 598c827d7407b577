"""A session that another user resumes: what the first user had and the second may not have.

A Client Identifier names a session independently of the user: a client that resumes the session of
another user gets it [MQTT-3.1.2-5], with its subscriptions and its waiting messages. These were
authorized for another user name, or by another listener's rules, and are authorized again.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from penstock.broker.access_control import RECEIVE, SUBSCRIBE, AccessControl, Action
from penstock.broker.mqtt.topics import matches, parse_share
from penstock.broker.sessions import redelivery
from penstock.broker.sessions.source_subscriptions import asked_filter

if TYPE_CHECKING:
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

_Question: TypeAlias = tuple[Action, str]


def is_anothers(core: Core, client_id: str, username: str | None, listener: str) -> bool:
    """Say whether a client's session is to be handed over first; arguments as of `hand_over`."""
    session = core.sessions.get(client_id)
    return (
        session is not None
        and core.access is not None
        and (session.username != username or session.listener != listener)
    )


async def hand_over(
    core: Core, client_id: str, username: str | None, listener: str, now: float
) -> None:
    """Take from a session that `is_anothers` what its next user may not have; it keeps the rest.

    When this returns, the session, if there is one, is that user's, on the listener by which it
    comes in. A connection of another user has been closed, so that nothing which that client does
    is done under the new name.
    """
    access = core.access
    assert access is not None  # noqa: S101 (see `is_anothers`)
    answers: dict[_Question, bool] = {}
    while (session := core.sessions.get(client_id)) is not None:
        if core.sessions.take_over(session, now):
            continue  # closing may have ended the session
        session.username = session.link.username = username
        session.listener = session.link.listener = listener
        core.tree.void_plans()  # they may say what the session may receive
        # What comes while access control takes its time is asked about too: another client may
        # have had the session meanwhile.
        new = [asked for asked in _questions(session, access) if asked not in answers]
        if not new:
            _take_away(core, session, answers, now)
            return
        for action, topic in new:
            answers[action, topic] = await core.router.is_allowed(session, topic, action)


def _questions(session: Session, access: AccessControl) -> dict[_Question, None]:
    """Return what is to be asked about a session, each question once."""
    questions: dict[_Question, None] = {}
    if access.checks_subscribe:
        for name in session.subscriptions:
            questions[SUBSCRIBE, asked_filter(session.core.consuming, name)] = None
    if access.checks_receive:
        for delivery in chain(session.outbox.waiting(), session.inflight):
            questions[RECEIVE, delivery.message.topic] = None
    return questions


def _take_away(core: Core, session: Session, answers: dict[_Question, bool], now: float) -> None:
    """Remove the subscriptions and messages that are refused."""
    refused = [
        name
        for name in session.subscriptions
        if not answers.get((SUBSCRIBE, asked_filter(core.consuming, name)), True)
    ]
    for name in refused:
        core.sessions.remove_subscription(session, name, now)
    kept = [parse_share(name).topic_filter for name in session.subscriptions]

    def is_refused(delivery: Delivery) -> bool:
        topic = delivery.message.topic
        if refused and not any(matches(topic_filter, topic) for topic_filter in kept):
            return True  # it came by one that is gone
        return not answers.get((RECEIVE, topic), True)

    redelivery.refused(session, is_refused, now)
