"""Who sends a request to the console, and what they may do.

Theory of operation. A caller shows a bearer token, or the cookie of a session that a login has
begun, or nothing, which has the role `anonymous`. Three things keep pages of other sites out, which
a browser lets send requests with the console's cookie, or to this machine: a request whose
`Origin` or `Sec-Fetch-Site` is another's is refused, the cookie is `SameSite=Strict`, and a change
needs a header with a text that only the console's own page was told. (`Host` is checked by
`penstock.plugins.web.service`.)
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from penstock.broker.config.checked_yaml import NamedBy, read_text
from penstock.broker.config.limits import Limits
from penstock.broker.config.secret_file import LEAST_SECRET_CHARACTERS, warn_of_readers
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.sessions.login_backoff import LoginBackoff
from penstock.plugins.web.bearer_tokens import digest_in, digest_of
from penstock.plugins.web.operators import OPERATOR, Operator, Role
from penstock.plugins.web.service import RequestError, error_answer, show
from penstock.plugins.web.terminal_escape import printable

COOKIE: Final = "penstock-console"

DETAIL: Final[web.RequestKey[str]] = web.RequestKey("detail")
"""Key of a request: more about a change, for its line in the log."""

CSRF_HEADER: Final = "X-CSRF-Token"

IDLE_SECONDS: Final = 3_600.0
"""A session without a request ends. A page that is hidden asks for nothing."""

LONGEST_SECONDS: Final = 12 * 3_600.0
"""No session is longer than a working day."""

MOST_SESSIONS: Final = 1_000
"""With more, the one that was unused for longest ends."""

MOST_TEXT_LOGGED: Final = 200

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

WRONG: Final = "wrong"
NO_SUCH_USER: Final = (
    "no password in plugins.access.password_file; allowed: its users, as those of a listener's "
    "own file cannot log in here"
)

PasswordCheck: TypeAlias = Callable[
    [str, str, str, Callable[[], bool] | None], Awaitable[Callable[[], bool] | str]
]
"""Checks (username, password, address, whether the answer is still wanted). Returns what says
whether the password is still right; or `WRONG` or `NO_SUCH_USER`."""


@dataclass(slots=True)
class Session:
    """A login.

    Attributes:
        token: the digest of the token; b"" for a login with a password.
        holds: says whether the password is still the user's.
        began_at: monotonic seconds of the login.
        used_at: monotonic seconds of the last request.
    """

    user: str
    token: bytes
    holds: Callable[[], bool]
    began_at: float
    used_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))


class Rules(NamedTuple):
    """The roles of callers, from the policy file.

    Attributes:
        anonymous: the role without login; None for none.
        names: names that a browser may know the console by, in lower case, beside its `Host`.
    """

    users: Mapping[str, Role]
    anonymous: Role | None
    names: frozenset[str] = frozenset()
    is_secure: bool = False


class Callers:
    """The callers of the console.

    Attributes:
        check_password: checks a user's password; None where there are no users.
        tokens: the owners of bearer tokens by the digest of the token.
        port: of the console; browsers send a cookie to all ports of a host.
    """

    def __init__(self, clock: Callable[[], float], logger: logging.Logger) -> None:
        self.rules = Rules({}, None)
        self.check_password: PasswordCheck | None = None
        self.tokens: Mapping[bytes, Operator] = {}
        self.port = 0
        self._clock = clock
        # It tells who has changed the level of the log, too.
        self._logger = logger.getChild("audit")
        self._logger.setLevel(logging.INFO)
        self._backoff = LoginBackoff(Limits())
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._changes: set[asyncio.Task[web.StreamResponse]] = set()

    def logins(self) -> list[str]:
        """Return what a login may have."""
        ways = {"password": self.check_password is not None, "token": bool(self.tokens)}
        return [way for way, is_there in ways.items() if is_there]

    @property
    def cookie(self) -> str:
        """The name of the cookie; with TLS one that no other host can set."""
        return f"{'__Host-' if self.rules.is_secure else ''}{COOKIE}-{self.port}"

    def drop_stale(self) -> None:
        """Check every password again: files were read again."""
        self._backoff.forget_wrong()
        for key, session in list(self._sessions.items()):
            if not session.holds():
                del self._sessions[key]

    def session(self, request: web.Request) -> Session | None:
        """Return the session of a request's cookie; None without one that goes on."""
        cookie = request.cookies.get(self.cookie)
        if cookie is None:
            return None
        key, now = digest_of(cookie), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        is_over = now - session.used_at > IDLE_SECONDS or now - session.began_at > LONGEST_SECONDS
        if is_over or self._role(session) is None:
            del self._sessions[key]
            return None
        session.used_at = now
        self._sessions.move_to_end(key)
        return session

    def _role(self, session: Session) -> Role | None:
        """Return the role of a session now; None where a reload has taken it away."""
        if session.token:
            owner = self.tokens.get(session.token)
            return None if owner is None else owner.role
        return self.rules.users.get(session.user)

    def of(self, request: web.Request) -> Operator:
        """Return who sends a request; without a role where nobody is known."""
        header = request.headers.get("Authorization")
        if header is not None:
            digest = digest_in(header)
            owner = None if digest is None else self.tokens.get(digest)
            return owner or Operator("", None)
        session = self.session(request)
        if session is not None:
            return Operator(session.user, self._role(session))
        return Operator("", self.rules.anonymous)

    def checking(self, is_open: Callable[[str], bool]) -> Any:
        """Return a middleware that lets a request through to whoever may send it."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_origin(request)
            operator = request[OPERATOR] = self.of(request)
            is_change = request.method not in ("GET", "HEAD")
            if not is_open(request.path):
                if operator.role is None:
                    return self._unknown(request)
                if is_change:
                    return await self._to_its_end(self._audited(request, operator, handler))
            return await (self._to_its_end(handler(request)) if is_change else handler(request))

        return check

    async def _to_its_end(self, change: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        """Make a change as a whole, even if its client leaves: half a reload would be none."""

        async def make() -> web.StreamResponse:
            return await change

        task = asyncio.create_task(make(), name="console change")
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        # Whose client has left has nobody to tell of its error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def close(self) -> None:
        """End what is being changed."""
        for task in list(self._changes):
            task.cancel()

    def _unknown(self, request: web.Request) -> web.Response:
        read = "another token" if "Authorization" in request.headers else "nothing"
        told = (
            f"Authorization: read {read}; allowed: Bearer and a token of this console, or a login"
        )
        answer = error_answer(HTTPStatus.UNAUTHORIZED, told)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _check_origin(self, request: web.Request) -> None:
        """Refuse what another site's page has sent; a program sends none of these headers."""
        origin = request.headers.get("Origin")
        if origin is not None and not self._is_own(origin, request):
            raise RequestError(f"Origin: read {show(origin)}; allowed: this console", 403)
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            # A link to the page may stand anywhere.
            is_link = request.headers.get("Sec-Fetch-Mode") == "navigate"
            if not is_link or request.method != "GET" or request.path.startswith("/api/"):
                raise RequestError("Sec-Fetch-Site: read another site; allowed: same-origin", 403)

    def _is_own(self, origin: str, request: web.Request) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if (parts.hostname or "") in self.rules.names:
            return True
        scheme = "https" if self.rules.is_secure else "http"
        return origin.lower() == f"{scheme}://{request.headers.get('Host', '').lower()}"

    def _check_change(self, request: web.Request, operator: Operator) -> None:
        """Check that a change is wanted by somebody who may make it.

        Raises:
            RequestError: 401 or 403.
        """
        if operator.role != "admin":
            status = HTTPStatus.FORBIDDEN if operator.name else HTTPStatus.UNAUTHORIZED
            who = f"{operator.name}: read role viewer" if operator.name else "login: read none"
            raise RequestError(f"{who}; allowed: role admin, as this changes something", status)
        session = None if "Authorization" in request.headers else self.session(request)
        if session is not None:
            _check_csrf(request, session)

    async def _audited(
        self, request: web.Request, operator: Operator, handler: Handler
    ) -> web.StreamResponse:
        outcome, may_act = "failed", False
        try:
            self._check_change(request, operator)
            may_act = True
            answer = await handler(request)
        except (PenstockError, web.HTTPException) as error:
            outcome = f"{getattr(error, 'status', 400)}: {error}"
            raise
        else:
            outcome = str(answer.status)
            return answer
        finally:
            what = f"{request.method} {request.rel_url.raw_path_qs} {request.get(DETAIL, '')}"
            name = operator.name or "(no login)"
            self._audit(name, request, what.rstrip(), outcome, is_refused=not may_act)

    def _audit(
        self, name: str, request: web.Request, what: str, outcome: str, *, is_refused: bool = False
    ) -> None:
        """Write a line; of very many lines of callers that are refused, some are left out."""
        fields = {"address": request.remote, "action": _short(what), "outcome": _short(outcome)}
        self._logger.info(
            "audit: user %s from %s: %s: %s",
            _short(name),
            request.remote or "?",
            _short(what),
            _short(outcome),
            extra=fields | {"is_unlimited": not is_refused},
        )

    async def login(self, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        """Begin a session for the right password or token.

        Raises:
            RequestError: 400 for neither, 401, 403 for a user without a role.
        """
        if set(body) == {"token"} and isinstance(body["token"], str):
            name, password, token = None, body["token"], digest_of(body["token"])
        elif set(body) == {"username", "password"} and all(
            isinstance(value, str) for value in body.values()
        ):
            name, password, token = body["username"], body["password"], b""
        else:
            raise RequestError(
                f"body: read the keys {show(sorted(body))}; allowed: username and password, or "
                "token, each a text"
            )
        address = request.remote or ""
        secret = password.encode(errors="surrogatepass")
        attempt = self._backoff.begin(address, name, secret, self._clock())
        if attempt is not None and attempt.wait > 0:
            told = "429: too many failures"
            self._audit(name or "(token)", request, "login", told, is_refused=True)
            told = f"login: read too many wrong ones; allowed: again in {attempt.wait:.0f} s"
            answer = error_answer(HTTPStatus.TOO_MANY_REQUESTS, told)
            answer.headers["Retry-After"] = str(math.ceil(attempt.wait))
            return answer
        holds: Callable[[], bool] | str = WRONG
        user = name or ""
        if attempt is None or not attempt.is_known_wrong:
            if token:
                owner = self.tokens.get(token)
                if owner is not None:
                    holds, user = (lambda: True), owner.name
            elif self.check_password is not None:
                is_wanted = None if attempt is None else attempt.is_wanted
                holds = await self.check_password(user, password, address, is_wanted)
        if isinstance(holds, str):
            if attempt is not None:
                self._backoff.failed(attempt, secret, self._clock())
            # Of any other user nobody is told whether there is one.
            is_told = holds == NO_SUCH_USER and user in self.rules.users
            told = f"{403 if is_told else 401}: {holds}"
            self._audit(name or "(token)", request, "login", told, is_refused=True)
            if is_told:
                raise RequestError(f"user {show(user)}: read {holds}", 403)
            raise RequestError("login: read a wrong password or token; allowed: a right one", 401)
        if attempt is not None:
            self._backoff.succeeded(attempt)
        now = self._clock()
        session = Session(user, token, holds, now, now)
        role = self._role(session)
        if role is None:
            self._audit(user, request, "login", "403: no role", is_refused=True)
            raise RequestError(
                f"user {show(user)}: read no role; allowed: users under admins or viewers of "
                "plugins.console",
                403,
            )
        self._audit(user, request, "login", f"role {role}")
        return self._begun(session, role)

    def _begun(self, session: Session, role: Role) -> web.Response:
        cookie = secrets.token_urlsafe(32)
        self._sessions[digest_of(cookie)] = session
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        answer = web.json_response({"user": session.user, "role": role, "csrf": session.csrf})
        answer.set_cookie(
            self.cookie,
            cookie,
            httponly=True,
            samesite="Strict",
            secure=self.rules.is_secure,
            max_age=int(LONGEST_SECONDS),
        )
        return answer

    def logout(self, request: web.Request) -> web.Response:
        """End a request's session, if there is one.

        Raises:
            RequestError: 403, without its CSRF token.
        """
        session = self.session(request)
        answer = web.json_response({})
        if session is not None:
            _check_csrf(request, session)
            self._sessions.pop(digest_of(request.cookies[self.cookie]), None)
            self._audit(session.user, request, "logout", "200")
        answer.del_cookie(self.cookie, secure=self.rules.is_secure)
        return answer


def _check_csrf(request: web.Request, session: Session) -> None:
    """Check that the console's own page has sent a request.

    Raises:
        RequestError: 403.
    """
    read = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(read.encode(errors="surrogateescape"), session.csrf.encode()):
        told = "another text" if read else "nothing"
        raise RequestError(f"{CSRF_HEADER}: read {told}; allowed: csrf of GET /api/me", 403)


def read_tokens(path: str, named_by: NamedBy) -> dict[bytes, Operator]:
    """Read a file with a line ``NAME ROLE TOKEN`` for each token; it blocks while it reads.

    Returns:
        The owner of each token by the token's digest.

    Raises:
        ConfigError: it cannot be read, or a line is wrong; no part of a token is in its text.
    """
    text = read_text(path, named_by=named_by, has_comments=True)
    warn_of_readers(named_by.key, path)
    found: dict[bytes, Operator] = {}
    problems: list[ConfigProblem] = []
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or line.lstrip().startswith("#"):
            continue
        problem = _token_problem(fields, names, found)
        if problem:
            problems.append(ConfigProblem(f"line {number}", *problem))
            continue
        name, role, token = fields
        names.add(name)
        found[digest_of(token)] = Operator(name, "admin" if role == "admin" else "viewer")
    if not found and not problems:
        problems.append(ConfigProblem("token_file", "no line", "NAME ROLE TOKEN"))
    if problems:
        raise ConfigError(str(Path(path)), problems)
    return found


def _token_problem(
    fields: list[str], names: set[str], found: Mapping[bytes, Operator]
) -> tuple[str, str] | None:
    """Return (what was read, what is allowed) of a wrong line; None of a right one."""
    if len(fields) != 3:
        return f"{len(fields)} fields", "three: NAME ROLE TOKEN, such as prometheus viewer TOKEN"
    name, role, token = fields
    if role not in ("viewer", "admin"):
        return f"role {show(role)}", "viewer or admin"
    if name in names:
        return f"{name} again", "each name once"
    if len(token) < LEAST_SECRET_CHARACTERS or not (token.isascii() and token.isprintable()):
        return "another token", f"{LEAST_SECRET_CHARACTERS} printable ASCII characters or more"
    if digest_of(token) in found:
        return f"the token of {found[digest_of(token)].name} again", "a token for each name"
    return None


def _short(text: str) -> str:
    return printable(text[:MOST_TEXT_LOGGED])
