"""The server of the queue for source and sink: its options, a client, and repeated requests.

Importable without Spark.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.plugins.queue.client import QueueClient, QueueError, read_token
from penstock.spark_bridge.errors import OptionError

_T = TypeVar("_T")
_C = TypeVar("_C", bound=QueueClient)

DEFAULT_RETRY_SECONDS: Final = 300.0
"""The default time for which a request is repeated, seconds: a gateway that stopped, or moves to
another machine, is back by then. A query that fails has to be started again by hand."""

NO_ANSWER: Final = 0
"""The status of an error for which the server has not answered."""

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500

_NEVER_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer that is not TLS; which one depends on its version."""

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of source and sink that concern the server.

    Attributes:
        url: the base URL of the queue's HTTP API, as ``http://host:port``.
        token: the bearer token; "" where the server needs none, or `token_file` has it.
        token_file: the file with the token, on the driver and on the executors' machines.
        ca_file: PEM file of the certificate authority of an https server, on the same machines; ""
            for the system's authorities.
        timeout_seconds: the longest time of one request, seconds.
        retry_seconds: the seconds for which a request is repeated to a server that does not answer
            or has no room, before the query fails; 0 sends it once.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    timeout_seconds: float = 30.0
    retry_seconds: float = DEFAULT_RETRY_SECONDS

    def __post_init__(self) -> None:
        """Check that the token comes from one place."""
        if self.token and self.token_file:
            raise OptionError("options 'token' and 'tokenFile': read both; allowed: one of them")


def make_client(options: ServerOptions, kind: type[_C]) -> _C:
    """Return a client of the server that the options name.

    Raises:
        OptionError: the token or the certificates cannot be read.
    """
    token = options.token or None
    try:
        if options.token_file:
            token = read_token(options.token_file)
    except (OSError, ValueError) as error:
        raise OptionError(f"option 'tokenFile': {error}; allowed: a file with a token") from error
    try:
        return kind(
            options.url, options.timeout_seconds, token=token, ca_file=options.ca_file or None
        )
    except OSError as error:  # of ssl, which does not name the file
        raise OptionError(
            f"option 'caFile': read {options.ca_file!r} ({error}); allowed: a PEM file"
        ) from error


class Patience:
    """The repetition of requests to a server that does not answer or has no room."""

    def __init__(
        self,
        retry_seconds: float,
        log: logging.Logger,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retry_seconds = retry_seconds
        self._log = log
        self._sleep = sleep
        self.clock = clock

    def ask(self, request: Callable[[], _T]) -> _T:
        """Return the answer to a request.

        Raises:
            QueueError: a refusal; or the last error, where the time is over.
        """
        give_up_at = self.clock() + self._retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return request()
            except QueueError as error:
                if not may_pass(error) or self.clock() + pause > give_up_at:
                    raise
                if pause == _FIRST_PAUSE_SECONDS:
                    self._log.warning(
                        "penstock: %s; asked again for %g s", error.message, self._retry_seconds
                    )
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def may_pass(error: QueueError) -> bool:
    """Say whether repeating a request can help: no answer, or trouble of the server's own.

    It cannot where certificates do not fit, or where one side does not speak TLS.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        if isinstance(cause, ssl.SSLError) and cause.reason in _NEVER_TLS:
            return False
        cause = cause.__cause__ or cause.__context__
    return error.status in (NO_ANSWER, _TOO_MANY) or error.status >= _SERVER_ERRORS
