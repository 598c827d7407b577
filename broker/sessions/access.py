"""Access control from several sources.

A policy file may name several plugins that decide about clients: aMQTT's, which are one source
through the aMQTT host, and Penstock's own. Their answers are combined as aMQTT combines those of
its own plugins:

* A client connects if at least one source accepts it and none refuses it. A source that says
  None leaves the decision to the others; if all say None, the client is refused. So a password
  file and a directory service may be used together, each for the users that it knows.
* A session may do something with a topic if every source that checks such an action agrees.
* A client gets the names of the first source that gives any.
* A client stays connected while each source that accepted it still does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from penstock.broker.access_control import (
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    Accepted,
    AccessControl,
    Action,
    Admittance,
    Authenticator,
    ConnectAttempt,
    SessionView,
)
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, RELAY_CLIENT_PREFIX, overridden


class SeveralSources(AccessControl):
    """Access control by several sources; see the module. Without a source, it refuses all clients.

    It answers without a wait if each source does.

    Attributes:
        checks_publish: whether any source checks it.
        checks_subscribe: the same.
        checks_receive: the same.
        answers_last: whether the answers of all that check anything do.
    """

    def __init__(self, sources: Sequence[AccessControl]) -> None:
        self._sources = tuple(sources)
        asked = [source for source in sources if _authorizes(source)]
        self._checking = {
            PUBLISH: tuple(source for source in asked if source.checks_publish),
            SUBSCRIBE: tuple(source for source in asked if source.checks_subscribe),
            RECEIVE: tuple(source for source in asked if source.checks_receive),
        }
        self.checks_publish = bool(self._checking[PUBLISH])
        self.checks_subscribe = bool(self._checking[SUBSCRIBE])
        self.checks_receive = bool(self._checking[RECEIVE])
        self.answers_last = all(source.answers_last for source in asked)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call a function whenever the answers of a source may have changed."""
        for source in self._sources:
            source.watch(on_change)

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Ask the sources in turn, up to the first that refuses."""
        answers: list[Admittance] = []
        for index, source in enumerate(self._sources):
            answer = source.authenticate(attempt)
            if isinstance(answer, Awaitable):
                return self._authenticate_later(attempt, answers, answer, index + 1)
            answers.append(answer)
            if _is_refusal(answer):
                break
        return _combined(answers)

    async def _authenticate_later(
        self,
        attempt: ConnectAttempt,
        answers: list[Admittance],
        awaited: Awaitable[Admittance],
        n_asked: int,
    ) -> Admittance:
        answers.append(await awaited)
        for source in self._sources[n_asked:]:
            if _is_refusal(answers[-1]):
                break
            answer = source.authenticate(attempt)
            answers.append(await answer if isinstance(answer, Awaitable) else answer)
        return _combined(answers)

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Ask the sources that check this action in turn, up to the first that refuses."""
        checking = self._checking[action]
        for index, source in enumerate(checking):
            answer = source.authorize(session, topic, action)
            if not isinstance(answer, bool):
                return _authorize_later(answer, checking[index + 1 :], session, topic, action)
            if not answer:
                return False
        return True


async def _authorize_later(
    awaited: Awaitable[bool],
    rest: Iterable[AccessControl],
    session: SessionView,
    topic: str,
    action: Action,
) -> bool:
    if not await awaited:
        return False
    for source in rest:
        answer = source.authorize(session, topic, action)
        if not (answer if isinstance(answer, bool) else await answer):
            return False
    return True


def _combined(answers: Iterable[Admittance]) -> Admittance:
    """Return what the sources' answers to one CONNECT come to."""
    said = [answer for answer in answers if answer is not None]
    if not said:
        return None
    refusal = next((answer for answer in said if _is_refusal(answer)), None)
    if refusal is not None:
        return refusal
    accepted = [answer for answer in said if isinstance(answer, Accepted)]
    if not accepted:
        return True
    named = (one for one in accepted if one.username is not None or one.client_id is not None)
    checks = [one.holds for one in accepted if one.holds is not None]
    holds = partial(_all_hold, checks) if checks else None
    return next(named, accepted[0])._replace(holds=holds)


def _is_refusal(answer: Admittance) -> bool:
    return answer is not None and not answer


def _all_hold(checks: Sequence[Callable[[], bool]]) -> bool:
    return all(holds() for holds in checks)


def combine(
    sources: Sequence[AccessControl], authenticators: Sequence[Authenticator] = ()
) -> AccessControl | None:
    """Return the access control for the core; None where there is no source and no authenticator.

    None accepts every client. The listeners are then local: see
    `penstock.broker.config.loopback_only`. Where only authenticators decide, a client that names
    none of their methods is refused.
    """
    if not sources and not authenticators:
        return None
    is_one = len(sources) == 1 and _authorizes(sources[0])
    return sources[0] if is_one else SeveralSources(sources)


class _Around(AccessControl):
    """Access control that asks another one, where it does not know the answer itself."""

    def __init__(self, inner: AccessControl) -> None:
        self._inner = inner
        self.checks_publish = inner.checks_publish
        self.checks_subscribe = inner.checks_subscribe
        self.checks_receive = inner.checks_receive
        self.answers_last = inner.answers_last

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call a function whenever the answers of the inner one may have changed."""
        self._inner.watch(on_change)

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Ask the inner one."""
        return self._inner.authenticate(attempt)


class ExceptLocal(_Around):
    """Access control that does not judge the clients in the broker's own process, except relays.

    They are not authenticated.
    """

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Allow the process's own clients everything; ask about relays and all others."""
        client_id = session.client_id
        if client_id.startswith(LOCAL_CLIENT_PREFIX) and not client_id.startswith(
            RELAY_CLIENT_PREFIX
        ):
            return True
        return self._inner.authorize(session, topic, action)


class AlsoAsking(_Around):
    """Access control that must allow a second topic, too, for some topics.

    Args:
        inner: asked about both.
        second: see `penstock.broker.extensions.Plugin.also_asked`; always the same of one topic.
    """

    def __init__(self, inner: AccessControl, second: Callable[[str], str | None]) -> None:
        super().__init__(inner)
        self._second = second

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Ask about the topic, and about the second one if there is one."""
        inner = self._inner
        answer = inner.authorize(session, topic, action)
        second = self._second(topic)
        if second is None or answer is False:
            return answer
        if answer is True:
            return inner.authorize(session, second, action)
        return _authorize_later(answer, (inner,), session, second, action)


def _authorizes(source: AccessControl) -> bool:
    """Say whether a source checks any topics, so that it must be asked about them."""
    return overridden(source.authorize, AccessControl.authorize) is not None
