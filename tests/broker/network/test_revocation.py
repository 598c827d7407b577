"""Certificate revocation lists: what is read of them, and who is refused for them."""

from __future__ import annotations

import base64
import datetime as dt
import logging
import os
import ssl
from pathlib import Path

import pytest

from penstock.broker.config.listener_config import Tls
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.revocation import is_revoked, read_lists
from penstock.broker.network.tls import TlsFilesError, make_context
from penstock.broker.server import Server
from tests.broker.serving import port_of, serving, until
from tests.helpers.certificates import Authority, CertificateFiles, break_file
from tests.helpers.streams import StreamClient
from tests.helpers.wire import WireClient, connected


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return an authority with a new key."""
    return Authority(tmp_path)


def der_of(files: CertificateFiles) -> bytes:
    """Return a certificate as TLS shows it."""
    return ssl.PEM_cert_to_DER_cert(Path(files.certfile).read_text())


def test_a_list_names_the_revoked_of_its_issuer(tmp_path: Path) -> None:
    """By serial number and issuer; and until when it holds."""
    ours, other = Authority(tmp_path), Authority(tmp_path, "other")
    good, lost, foreign = ours.issue_client("a"), ours.issue_client("b"), other.issue_client("c")
    text = Path(ours.revoke(lost, ours.issue_client("d"))).read_text()
    (found,) = lists = read_lists(text)
    assert len(found.serials) == 2
    assert found.next_update is not None
    assert found.next_update > dt.datetime.now(dt.UTC)
    for files, is_listed in ((good, False), (lost, True), (foreign, False)):
        assert is_revoked(lists, der_of(files)) is is_listed
    both = read_lists(text + Path(other.revoke(foreign)).read_text())
    assert is_revoked(both, der_of(foreign))
    elsewhere = [one._replace(issuer=b"another") for one in both]
    assert not is_revoked(elsewhere, der_of(lost))


def test_an_empty_list_revokes_nothing(tmp_path: Path) -> None:
    """Nor does a file without any."""
    authority = Authority(tmp_path)
    (found,) = read_lists(Path(authority.revoke()).read_text())
    assert not found.serials
    assert read_lists("") == []


def test_dates_beyond_2049_have_another_form(tmp_path: Path) -> None:
    """RFC 5280, 5.1.2.5."""
    until = dt.datetime(2060, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    (found,) = read_lists(Path(Authority(tmp_path).revoke(until=until)).read_text())
    assert found.next_update == until


def test_what_is_truncated_is_no_list(tmp_path: Path) -> None:
    """At every byte."""
    authority = Authority(tmp_path)
    lost = authority.issue_client("b")
    der = base64.b64decode("".join(Path(authority.revoke(lost)).read_text().splitlines()[1:-1]))
    certificate = der_of(lost)
    for data in (der[:end] for end in range(len(der))):
        pem = base64.b64encode(data).decode()
        with pytest.raises(ValueError, match="DER"):
            read_lists(f"-----BEGIN X509 CRL-----{pem}-----END X509 CRL-----")
    for end in range(len(certificate)):
        with pytest.raises(ValueError, match="DER"):
            is_revoked([], certificate[:end])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("fifo", "Not a regular file"),
        ("garbage", "no certificate revocation list in PEM form"),
        ("certificate", "read certificates in it; allowed: revocation lists only"),
    ],
)
def test_a_file_that_is_no_list_is_named(
    authority: Authority, tmp_path: Path, content: str | None, told: str
) -> None:
    """Certificates in it would be authorities; a FIFO might never say anything."""
    certfile, keyfile = authority.issue()
    file = tmp_path / "list"
    if content == "fifo":
        os.mkfifo(file)
    elif content is not None:
        file.write_text(Path(certfile).read_text() if content == "certificate" else content)
    tls = Tls(certfile, keyfile, cafile=authority.cafile, crlfile=str(file))
    with pytest.raises(TlsFilesError, match=f"crlfile {file}: {told}"):
        make_context(tls, ("mqtt",))


async def answer_to(server: Server, context: ssl.SSLContext) -> ConnAck | None:
    """Return what a client's CONNECT is answered; None where TLS refuses it."""
    client = await StreamClient.dial_tls(port_of(server), context)
    try:
        await client.send(Connect(client_id="x", keep_alive=0))
        answer = await client.receive()
    except OSError:  # the refusal came before the CONNECT had left
        return None
    finally:
        client.close()
    assert isinstance(answer, ConnAck | None)
    return answer


@pytest.mark.parametrize("version", [4, 5])
async def test_revoked_certificates_are_refused_and_those_connected_disconnected(
    authority: Authority, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    """As soon as the list is read again; others stay, and a list that is none changes nothing."""
    caplog.set_level(logging.INFO)
    lost, kept = authority.issue_client("lost"), authority.issue_client("kept")
    file = authority.revoke()
    keys = authority.listener_keys(cafile=authority.cafile, crlfile=file, require_certificate=True)
    of_lost, of_kept = authority.client_context(lost), authority.client_context(kept)
    async with (
        serving(
            listeners={"default": keys, "plain": {"bind": "127.0.0.1:0", "ssl": False}}
        ) as server,
        await connected(port_of(server, "plain")),
        await StreamClient.dial_tls(port_of(server), of_lost, version) as first,
        await StreamClient.dial_tls(port_of(server), of_kept, version) as second,
    ):
        await first.connect("first")
        await second.connect("second")
        authority.revoke(lost)
        await server.reload()
        assert f"crlfile {file}" in caplog.messages[-2]
        if version == 5:
            assert (await first.take(Disconnect)).reason_code == ReasonCode.NOT_AUTHORIZED
        assert await first.receive() is None
        assert "disconnected: its certificate is revoked" in caplog.messages[-1]
        assert await answer_to(server, of_lost) is None
        assert "certificate verify failed: certificate revoked" in caplog.text
        assert (await second.publish("t", b"x", 1)).reason_code < 0x80
        assert await answer_to(server, of_kept) == await answer_to(server, of_kept)
        break_file(file)
        await server.reload()
        assert f"crlfile {file}: no certificate revocation list in PEM form" in caplog.text
        assert await answer_to(server, of_lost) is None
        assert server.core.counters.revoked == 1


async def test_an_expired_revocation_list_refuses_every_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """As OpenSSL has it; the log tells at the start, and of each client."""
    caplog.set_level(logging.INFO)
    an_hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    file = authority.revoke(until=an_hour_ago)
    keys = authority.listener_keys(cafile=authority.cafile, crlfile=file, require_certificate=True)
    async with serving(listeners={"default": keys}) as server:
        context = authority.client_context(authority.issue_client("any"))
        assert await answer_to(server, context) is None
    assert f"crlfile {file}: a list in it has expired: all certificates" in caplog.text
    assert "certificate verify failed: CRL has expired" in caplog.text


async def test_who_is_on_the_way_in_comes_by_the_new_revocation_list(authority: Authority) -> None:
    """A handshake that began before the list was read is not finished."""
    keys = authority.listener_keys(cafile=authority.cafile, crlfile=authority.revoke())
    async with (
        serving(listeners={"default": keys}) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        await until(lambda: bool(server._reception.in_layers))
        await server.reload()
        assert await client.receive() is None
