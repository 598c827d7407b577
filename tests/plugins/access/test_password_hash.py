from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.access.password_hash import (
    MAX_ITERATIONS,
    Argon2Hash,
    PasswordHash,
    make_hash,
    parse_hash,
    verify,
)

DIGEST = "A" * 86 + "=="


@pytest.mark.parametrize("options", [(), ("-H", "sha512")], ids=["$7$", "$6$"])
def test_what_mosquitto_passwd_writes_is_verified(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Both of its forms, as they are; no other password passes."""
    file = tmp_path / "passwords"
    file.touch()
    made = ["mosquitto_passwd", *options, "-b", str(file), "u", "pässword"]
    subprocess.run(made, check=True, capture_output=True)
    stored = parse_hash(file.read_text().strip().partition(":")[2])
    assert verify("pässword".encode(), stored)
    for wrong in (b"", b"password", "pässword ".encode()):
        assert not verify(wrong, stored)


@given(
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=20),
    st.integers(0, 3),
    st.binary(max_size=20),
)
def test_a_hash_is_read_as_it_was_written(
    password: bytes, salt: bytes, iterations: int, other: bytes
) -> None:
    """And verifies the one password it was made of."""
    stored = make_hash(password, salt, iterations)
    assert parse_hash(str(stored)) == stored
    assert verify(password, stored)
    if iterations:  # HMAC pads with zeros, so it cannot tell such passwords apart
        password, other = password.rstrip(b"\0"), other.rstrip(b"\0")
    assert verify(other, stored) == (other == password)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", "mosquitto_passwd"),
        ("plain", "mosquitto_passwd"),
        (f"$5$c2FsdA==${DIGEST}", "mosquitto_passwd"),
        (f"$6$c2FsdA==${DIGEST}$", "mosquitto_passwd"),
        (f"$7$c2FsdA==${DIGEST}", "mosquitto_passwd"),
        (f"$7$x$c2FsdA==${DIGEST}", "mosquitto_passwd"),
        (f"$7$0$c2FsdA==${DIGEST}", "iterations"),
        (f"$7${MAX_ITERATIONS + 1}$c2FsdA==${DIGEST}", "iterations"),
        (f"$6$c2Fsd${DIGEST}", "base64"),
        (f"$6$c2FsdÄ==${DIGEST}", "mosquitto_passwd"),
        ("$6$c2FsdA==$c2FsdA==", "64 bytes"),
        (f"$6$${DIGEST}", "a salt"),
    ],
)
def test_another_form_is_refused_without_being_repeated(text: str, allowed: str) -> None:
    """The error says what is allowed; a secret is no part of it."""
    with pytest.raises(ValueError, match=allowed) as caught:
        parse_hash(text)
    assert not text or text not in str(caught.value)


def test_the_older_form_is_one_digest() -> None:
    """SHA-512 of password and salt, which mosquitto 1.6 wrote."""
    assert str(PasswordHash(0, b"salt", bytes(64))).startswith("$6$c2FsdA==$")


@pytest.mark.parametrize(
    ("memory_kib", "passes", "lanes", "salt", "n_bytes"),
    [(47_104, 1, 1, bytes(range(64)), 64), (256, 3, 4, b"8 bytes.", 32)],
    ids=["mosquitto 2.1", "another"],
)
def test_argon2id_is_verified(
    memory_kib: int, passes: int, lanes: int, salt: bytes, n_bytes: int
) -> None:
    """As another implementation, OpenSSL's, makes it; with mosquitto's parameters and others."""
    made = Argon2id(
        salt=salt, length=n_bytes, iterations=passes, lanes=lanes, memory_cost=memory_kib
    ).derive_phc_encoded("pässword".encode())
    assert made.startswith("$argon2id$v=19$m=")
    stored = parse_hash(made)
    assert stored == Argon2Hash(19, memory_kib, passes, lanes, salt, stored.digest)
    assert verify("pässword".encode(), stored)
    for wrong in (b"", b"password", "pässword ".encode()):
        assert not verify(wrong, stored)


ARGON2ID = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAA"


@pytest.mark.parametrize(
    ("was", "now", "allowed"),
    [
        ("argon2id", "argon2i", "mosquitto_passwd"),
        ("v=19$", "", "mosquitto_passwd"),
        ("v=19", "v=20", "mosquitto_passwd"),
        ("m=64,", "", "mosquitto_passwd"),
        ("t=1", "t=0", "t of 1 to 100"),
        ("t=1", "t=101", "t of 1 to 100"),
        ("p=1", "p=9", "8 for each lane"),
        ("p=1", "p=0", "p of 1 to"),
        ("m=64", "m=1048577", "to 1048576"),
        ("c2FsdHNhbHQ", "c2FsdHNhbA", "salt of 8 bytes"),
        ("c2FsdHNhbHQ", "c2FsdHNhbHÄ", "base64"),
        ("AAAAAAAAAAA", "AAAA", "4 or more"),
        ("AAAAAAAAAAA", "AAAAAAAAAAA$", "mosquitto_passwd"),
    ],
)
def test_another_form_of_argon2id_is_refused_without_being_repeated(
    was: str, now: str, allowed: str
) -> None:
    """What would fail, or take a machine's memory, at a login is found at the start."""
    assert verify(b"", parse_hash(ARGON2ID)) is False
    text = ARGON2ID.replace(was, now, 1)
    assert text != ARGON2ID
    with pytest.raises(ValueError, match=allowed) as caught:
        parse_hash(text)
    assert text not in str(caught.value)
