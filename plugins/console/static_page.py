"""The files of the page, served from memory."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

from aiohttp import web

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of each answer, unless it has them."""


async def add_security_headers(_request: web.Request, answer: web.StreamResponse) -> None:
    """Add the headers to an answer that is about to be sent."""
    for name, value in SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)


class _File(NamedTuple):
    body: bytes
    compressed: bytes
    content_type: str
    etag: str


class StaticPage:
    """The page: ``/`` is its index.html, ``/assets/NAME`` any other file.

    Attributes:
        paths: all paths that are served, and need no login.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        for entry in (files("penstock.plugins.console") / "page").iterdir():
            if not entry.is_file() or entry.name.startswith((".", "_")):
                continue
            body = entry.read_bytes()
            kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            path = "/" if entry.name == "index.html" else f"/assets/{entry.name}"
            self._files[path] = _File(body, gzip.compress(body, mtime=0), kind, etag)

    @property
    def paths(self) -> frozenset[str]:  # noqa: D102 (above)
        return frozenset(self._files)

    async def serve(self, request: web.Request) -> web.Response:
        """Answer with a file, or by 304 where the browser has it."""
        found = self._files.get(request.path)
        if found is None:
            raise web.HTTPNotFound
        headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if found.etag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = found.compressed
        charset = "utf-8" if found.content_type.startswith("text/") else None
        return web.Response(
            body=body, headers=headers, content_type=found.content_type, charset=charset
        )
