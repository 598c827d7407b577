"""TLS between a socket's transport and the protocol above.

Theory of operation. OpenSSL works on two buffers in memory; this layer moves bytes between them and
the transport. asyncio and uvloop have a TLS layer of their own, which reserves 256 KiB for each
connection, encrypts at once all that it is given, and does not tell how much of that is unsent.
Here plaintext waits by reference until the transport below has room, and is encrypted in slices. A
large payload that waits for many stalled subscribers stays one payload, and the unsent bytes of a
connection are known exactly. Bytes that the PROXY header's reader read ahead are simply passed to
this layer.

The server's signature is what a handshake costs, a millisecond with a key of RSA. So the first
answers of handshakes take turns: one in each round of the loop, which serves all other connections
in between. A client that comes back with a session ticket is spared the signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.broker.config.checked_yaml import check_is_no_pipe
from penstock.broker.config.listener_config import Tls
from penstock.broker.errors import PenstockError
from penstock.broker.network.new_connection import AcceptedConnection, Layer
from penstock.broker.network.revocation import RevocationList, read_lists

SLICE_BYTES: Final = 65_536
"""So much plaintext is encrypted before the transport below is checked for room again."""

RECORD_BYTES: Final = 16_384
"""So much goes to OpenSSL at a time, and is asked of it: the longest record. Its buffers in memory
keep the room for the most that they have held, for as long as the connection lasts."""

_CONNECT_BYTE: Final = 0x10

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
"""OpenSSL's numbers for what is wrong with a certificate's dates."""

_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)

Buffer: TypeAlias = bytes | bytearray | memoryview


class TlsFilesError(PenstockError):
    """A file of a listener's TLS cannot be used."""


def make_context(tls: Tls, protocols: tuple[str, ...]) -> ssl.SSLContext:
    """Return the context of a listener; reads all its files.

    Raises:
        TlsFilesError: a file cannot be used; the message names it.
    """
    _check_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version(tls)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could use it to make the server work
    context.set_alpn_protocols(list(protocols))
    context.num_tickets = 1  # a client has one connection; a second ticket takes 20 us
    _load_certificate(context, tls)
    if tls.ciphers is not None:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError as error:
            raise TlsFilesError(
                f"ciphers: read {tls.ciphers!r}; allowed: a cipher list of OpenSSL"
            ) from error
    if tls.cafile or tls.capath or tls.cadata:
        _load_authorities(context, tls)
        if tls.crlfile is not None:
            _load_revocation_lists(context, tls.crlfile)
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_certificate else ssl.CERT_OPTIONAL
    return context


def renewed(context: ssl.SSLContext, newer: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    """Return the context for connections after a reload of the files.

    It is the one in use, with the new certificate: the session tickets of its clients hold, which
    may come back by the thousand. Where clients show certificates it is the newer one, as no ticket
    may outlive an authority or a revocation list. Its key is of the same algorithm as the new one:
    it would keep one of another.
    """
    if context.verify_mode != ssl.CERT_NONE:
        return newer
    try:
        _load_certificate(context, tls)
    except (TlsFilesError, OSError):  # the files have just changed again
        return newer
    return context


def key_algorithm(certificates: str) -> str:
    """Return the algorithm of the key of the first certificate in a PEM text; "" for unknown."""
    from asn1crypto.x509 import Certificate  # noqa: PLC0415 (few need it, and it takes 0.1 s)

    found = _CERTIFICATE.search(certificates)
    try:
        der = ssl.PEM_cert_to_DER_cert(found[0]) if found else b""
        return str(Certificate.load(der).public_key.algorithm)
    except ValueError:
        return ""


def make_client_context(tls: Tls, *, is_verifying: bool = True) -> ssl.SSLContext:
    """Return the context of connections to another broker; reads all its files.

    Args:
        tls: the certificate to show, "" for none, and the authorities whose certificates the other
            side may show; the system's where it names none.
        is_verifying: False accepts any certificate and name.

    Raises:
        TlsFilesError: a file cannot be used; the message names it.
    """
    _check_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _version(tls)
    if tls.certfile:
        _load_certificate(context, tls)
    if not is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.cafile or tls.capath:
        _load_authorities(context, tls)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _version(tls: Tls) -> ssl.TLSVersion:
    return ssl.TLSVersion.TLSv1_3 if tls.minimum_version > 1.2 else ssl.TLSVersion.TLSv1_2


def _check_files(tls: Tls) -> None:
    """Check that each file can be read; OpenSSL's own errors name none."""
    for key in ("certfile", "keyfile", "cafile", "crlfile"):
        file = getattr(tls, key)
        if not file:
            continue
        try:
            check_is_no_pipe(file)
            with open(file, "rb"):  # noqa: PTH123 (opened for its error alone)
                pass
        except OSError as error:
            raise TlsFilesError(f"{key} {file}: {error.strerror or error}") from error


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.certfile, tls.keyfile, password=lambda: "")
    except ssl.SSLError as error:
        raise TlsFilesError(_what_is_wrong(tls, error)) from error


def _what_is_wrong(tls: Tls, error: ssl.SSLError) -> str:
    """Return whether a certificate or its key is at fault; OpenSSL names no file."""
    if error.reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return f"keyfile {tls.keyfile}: not the key of certfile {tls.certfile}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=tls.certfile)
    except ssl.SSLError:
        return f"certfile {tls.certfile}: no certificate in PEM form"
    if error.reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"):
        return f"certfile {tls.certfile}: too weak: {error.reason}"
    return f"keyfile {tls.keyfile}: no private key in PEM form, or one with a passphrase"


def _load_authorities(context: ssl.SSLContext, tls: Tls) -> None:
    try:
        context.load_verify_locations(tls.cafile, tls.capath, tls.cadata)
    except OSError as error:  # OpenSSL's errors are OSErrors, too
        where = f"cafile {tls.cafile}" if tls.cafile else "cadata"
        reason = "no certificates in PEM form" if isinstance(error, ssl.SSLError) else str(error)
        raise TlsFilesError(f"{where}: {reason}") from error


def _load_revocation_lists(context: ssl.SSLContext, file: str) -> None:
    """Have OpenSSL refuse certificates that their authority has revoked."""
    before = context.cert_store_stats()
    problem = f"crlfile {file}: no certificate revocation list in PEM form"
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise TlsFilesError(problem) from error
    after = context.cert_store_stats()
    if after["x509"] != before["x509"]:  # OpenSSL would trust them as authorities
        raise TlsFilesError(
            f"crlfile {file}: read certificates in it; allowed: revocation lists only"
        )
    if after["crl"] == before["crl"]:
        raise TlsFilesError(problem)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def revocation_lists(tls: Tls) -> list[RevocationList]:
    """Return the revocation lists of a listener; an empty list where it has no `crlfile`.

    Raises:
        TlsFilesError: one cannot be read.
    """
    if tls.crlfile is None:
        return []
    try:
        return read_lists(Path(tls.crlfile).read_text("latin-1"))
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"crlfile {tls.crlfile}: {error}") from error


def problem_of_certificate(context: ssl.SSLContext, tls: Tls) -> str | None:
    """Return why clients will refuse a certificate by its dates, or None.

    Python reads a certificate's dates only as a client in a handshake, so one is performed here.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # no authority is needed
    client.load_verify_locations(cafile=tls.certfile)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_side=False)
    answering = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
                return error.verify_message
        except ssl.SSLError:
            break  # other problems show when a client connects
    return None


class TlsLayer(Layer):
    """The server's side of one TLS connection.

    Invariant: plaintext waits only while the transport below is paused.
    """

    def __init__(
        self, above: asyncio.Protocol, arrival: AcceptedConnection, context: ssl.SSLContext
    ) -> None:
        """Prepare for a connection."""
        super().__init__(above, arrival)
        self._context = context
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._ssl: ssl.SSLObject
        self._unsent: deque[Buffer] = deque()
        self._unsent_bytes = 0
        self._is_above_paused = False
        self._is_closing = False
        self._has_answered = False
        self._is_waiting = False

    def begin(self) -> None:
        """Create OpenSSL's objects; a connection that is cut off at once does not pay for them."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    # -- reading ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Decrypt received bytes and pass them on."""
        if self._is_closing or self.below.is_closing():
            return
        if self.is_open:
            self._decrypt(data)
            return
        self._incoming.write(data)
        if self._has_answered:
            self._shake_hands(data[0])
        elif not self._is_waiting:
            self._is_waiting = True
            self.arrival.handshakes.take(partial(self._answer, data[0]))

    def _answer(self, first_byte: int) -> None:
        """Take a turn of the handshake."""
        self._is_waiting = False
        if not (self._is_closing or self.below.is_closing()):
            self._shake_hands(first_byte)

    def _decrypt(self, data: bytes = b"") -> None:
        """Pass on what has come, behind that which OpenSSL has, as far as it is whole."""
        chunks: list[bytes] = []
        has_ended = False
        try:
            for start in range(0, len(data) or 1, RECORD_BYTES):
                self._incoming.write(data[start : start + RECORD_BYTES])
                has_ended = self._read(chunks)
                if has_ended:
                    break
        except ssl.SSLError as error:
            self.arrival.note("tls", f"TLS error: {_reason(error)}")
            has_ended = True
        if self._outgoing.pending:
            self._write_below()
        if chunks:
            self.above.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if has_ended:
            self.arrival.end_in_time()
            self.close()

    def _read(self, chunks: list[bytes]) -> bool:
        """Decrypt whole records; return whether a close_notify has come."""
        try:
            while chunk := self._ssl.read(RECORD_BYTES):
                chunks.append(chunk)
                if not self._incoming.pending:  # and nothing is left of a record
                    return False
        except ssl.SSLWantReadError:
            return False
        return True

    def _shake_hands(self, first_byte: int) -> None:
        """Continue the handshake; once it is complete, decrypt what came with its end."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._has_answered |= bool(self._outgoing.pending)
            self._write_below()
            return
        except ssl.SSLError as error:
            self._write_below()  # the alert
            self._is_closing = True
            reason = _reason(error)
            if first_byte == _CONNECT_BYTE and reason == "wrong version number":
                reason = "MQTT without TLS"
            self.arrival.fail("tls", f"no TLS: {reason}")
            return
        arrival = self.arrival
        arrival.ssl_object = self._ssl
        if certificate := self._ssl.getpeercert():  # else the PROXY protocol may have named one
            arrival.certificate_name = _common_name(certificate)
        self._write_below()
        self.open()
        if not self._is_closing:
            self._decrypt()

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send some bytes."""
        if self._unsent or self.is_below_paused or self._is_closing or len(data) > RECORD_BYTES:
            self.writelines((data,))
            return
        # Most packets go this way, which takes half as long.
        try:
            self._ssl.write(data)
        except ssl.SSLError:  # the peer has ended TLS: nothing more can be sent
            self.abort()
            return
        self._write_below()
        self._tell_above()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send some buffers; small ones share a record."""
        if self._is_closing:
            return
        buffers = list(list_of_data)
        n_bytes = sum(map(len, buffers))
        self._unsent += [b"".join(buffers)] if n_bytes <= SLICE_BYTES else filter(None, buffers)
        self._unsent_bytes += n_bytes
        self._encrypt()
        self._tell_above()

    def _encrypt(self) -> None:
        """Encrypt waiting plaintext while the transport below has room."""
        unsent = self._unsent
        try:
            while unsent and not self.is_below_paused:
                n_room = SLICE_BYTES
                records: list[bytes] = []
                while unsent and n_room > 0:
                    buffer = unsent[0]
                    if len(buffer) > RECORD_BYTES:
                        buffer = memoryview(buffer)
                    n_bytes = self._ssl.write(buffer[:RECORD_BYTES])
                    records.append(self._outgoing.read())
                    n_room -= n_bytes
                    self._unsent_bytes -= n_bytes
                    if n_bytes == len(buffer):
                        unsent.popleft()
                    else:
                        unsent[0] = memoryview(buffer)[n_bytes:]
                self.below.writelines(records)
        except ssl.SSLError:  # the peer has ended TLS: nothing more can be sent
            self.abort()

    def _write_below(self) -> None:
        if self._outgoing.pending:
            self.below.write(self._outgoing.read())

    def _tell_above(self) -> None:
        """Pause or resume the protocol above, whenever the transport below is paused or resumed."""
        if self.is_open and self._is_above_paused != self.is_below_paused:
            self._is_above_paused = self.is_below_paused
            if self._is_above_paused:
                self.above.pause_writing()
            else:
                self.above.resume_writing()

    def pause_writing(self) -> None:
        """Stop encrypting; the protocol above is paused after its next write."""
        self.is_below_paused = True

    def resume_writing(self) -> None:
        """Encrypt what waits."""
        self.is_below_paused = False
        self._encrypt()
        if self._is_closing:
            self._close_below()
        else:
            self._tell_above()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that were written and not sent, encrypted or not."""
        return self._unsent_bytes + self.below.get_write_buffer_size()

    # -- the end ------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._is_closing or self.below.is_closing()

    def can_write_eof(self) -> bool:
        """Return whether one direction can end alone; False while plaintext waits."""
        return not self._unsent and super().can_write_eof()

    def close(self) -> None:
        """Send what waits, then close_notify, and close."""
        if not self._is_closing:
            self._is_closing = True
            self._close_below()

    def _close_below(self) -> None:
        if self._unsent:
            return
        with contextlib.suppress(ssl.SSLError):  # the peer's close_notify has not come yet
            self._ssl.unwrap()
        self._write_below()
        self.below.close()

    def abort(self) -> None:
        """Drop the connection without sending the rest."""
        self._is_closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self.below.abort()


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()


def _common_name(certificate: Any) -> str | None:
    """Return the common name of a certificate as `getpeercert` gives it."""
    for name in (certificate or {}).get("subject", ()):
        for key, value in name:
            if key == "commonName":
                return str(value)
    return None
