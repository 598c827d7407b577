"""A certificate authority for tests, and the files of the certificates that it has issued."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


class CertificateFiles(NamedTuple):
    """A certificate with its key, in PEM files.

    Attributes:
        certfile: the file of the certificate and of those between it and its root.
        keyfile: the file of its private key.
    """

    certfile: str
    keyfile: str


class Authority:
    """The authority, which issues certificates.

    Attributes:
        cafile: the PEM file of its own certificate, for those who trust it.
        folder: the folder of all files.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make an authority with a new key.

        Args:
            folder: the folder for the files.
            name: they begin with.
        """
        self.folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.cafile = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.cafile)

    def issue(
        self,
        *identities: str,
        common_name: str | None = None,
        file: str = "server",
        is_expired: bool = False,
        key_type: trustme.KeyType = trustme.KeyType.ECDSA,
    ) -> CertificateFiles:
        """Issue a certificate; an equal `file` overwrites the previous one.

        Args:
            identities: the host names and addresses; `localhost` and 127.0.0.1 where there are
                none.
            common_name: the common name of the subject.
            file: the name of its files without their suffixes.
            is_expired: whether it expired yesterday.
            key_type: the algorithm of its key.
        """
        now = dt.datetime.now(dt.UTC)
        issued = self._authority.issue_cert(
            *(identities or ("localhost", "127.0.0.1", "::1")),
            common_name=common_name,
            not_before=now - dt.timedelta(days=2),
            not_after=now + dt.timedelta(days=-1 if is_expired else 30),
            key_type=key_type,
        )
        files = CertificateFiles(
            str(self.folder / f"{self._name}-{file}.crt"),
            str(self.folder / f"{self._name}-{file}.key"),
        )
        Path(files.certfile).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(files.keyfile)
        return files

    def issue_client(self, common_name: str) -> CertificateFiles:
        """Issue a client's certificate with a common name."""
        return self.issue("client.test", common_name=common_name, file=f"client-{common_name}")

    def revoke(self, *revoked: CertificateFiles, until: dt.datetime | None = None) -> str:
        """Write the authority's revocation list over the last one, and return its file.

        Args:
            revoked: certificates of this authority.
            until: the time at which a newer list is due; None for an hour from now.
        """
        now = dt.datetime.now(dt.UTC)
        own = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        built = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(own.subject)
            .last_update(now - dt.timedelta(days=1))
            .next_update(until or now + dt.timedelta(hours=1))
        )
        for files in revoked:
            serial = x509.load_pem_x509_certificate(Path(files.certfile).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            built = built.add_revoked_certificate(entry.build())
        key = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        file = self.folder / f"{self._name}.crl"
        file.write_bytes(built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return str(file)

    def listener_keys(self, **keys: Any) -> dict[str, Any]:
        """Return the keys of a listener with TLS on a free port of this machine.

        Args:
            keys: further keys of the listener.
        """
        certfile, keyfile = self.issue()
        return {
            "bind": "127.0.0.1:0",
            "ssl": True,
            "certfile": certfile,
            "keyfile": keyfile,
            **keys,
        }

    def client_context(self, client: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a context of clients that trust this authority.

        Args:
            client: the client's own certificate, or None.
        """
        context = ssl.create_default_context(cafile=self.cafile)
        if client is not None:
            context.load_cert_chain(client.certfile, client.keyfile)
        return context


def break_file(name: str) -> None:
    """Leave nothing in a file that could be used."""
    Path(name).write_text("broken")
