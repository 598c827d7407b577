from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.errors import ConfigError
from penstock.plugins.queue.access import ALL_QUEUES, QueueAccess, RequestRate, require_tokens

TOKEN = "correct-horse-battery"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
SECRET = "a-secret-of-the-importer"


def tokens(folder: Path, text: str) -> Path:
    """Write a file of tokens, beside the file of a secret."""
    (folder / "importer.secret").write_text(SECRET + "\n")
    file = folder / "tokens.yaml"
    file.write_text(text)
    return file


GOOD = f"""
tokens:
- name: dashboard
  token_sha256: {DIGEST}
  roles: {{telemetry: [read], "raw-*": [read, write]}}
- name: importer
  secret_file: importer.secret
  access_key_id: AKIAIMPORTER
  roles: {{"*": [admin]}}
"""


def loaded(folder: Path, text: str = GOOD) -> QueueAccess:
    """Load a file of tokens."""
    return QueueAccess.load(str(tokens(folder, text)))


def test_a_caller_is_known_by_its_bearer_token(tmp_path: Path) -> None:
    """The digest of the token is in the file, or the token itself in a file of its own."""
    access = loaded(tmp_path)
    dashboard, importer = access.bearer(f"Bearer {TOKEN}"), access.bearer(f"bearer  {SECRET}")
    assert dashboard is not None
    assert importer is not None
    assert (dashboard.name, dashboard.secret) == ("dashboard", "")
    assert (importer.name, importer.secret) == ("importer", SECRET)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {DIGEST}"]
)
def test_another_header_names_no_caller(tmp_path: Path, header: str | None) -> None:
    """The digest is no token either."""
    assert loaded(tmp_path).bearer(header) is None


def test_a_signature_names_its_caller_by_the_access_key_id(tmp_path: Path) -> None:
    """Only a caller whose secret is known can sign; the name is the ID where none is given."""
    access = loaded(tmp_path)
    importer = access.by_key("AKIAIMPORTER")
    assert importer is not None
    assert importer.secret == SECRET
    assert (access.by_key("importer"), access.by_key("dashboard")) == (None, None)
    named = loaded(tmp_path, GOOD.replace("  access_key_id: AKIAIMPORTER\n", ""))
    assert named.by_key("importer") == importer


@pytest.mark.parametrize(
    ("queue", "roles"),
    [
        ("telemetry", ["read"]),
        ("raw-1", ["read", "write"]),
        ("raw", []),
        ("TELEMETRY", []),
        (ALL_QUEUES, []),
    ],
)
def test_roles_hold_in_the_queues_whose_names_match(
    tmp_path: Path, queue: str, roles: list[str]
) -> None:
    """A role in some queues is none in the whole storage, and admin is not read."""
    access = loaded(tmp_path)
    dashboard, importer = access.bearer(f"Bearer {TOKEN}"), access.bearer(f"Bearer {SECRET}")
    assert dashboard is not None
    assert importer is not None
    assert [role for role in ("read", "write", "admin") if dashboard.may(role, queue)] == roles
    assert [role for role in ("read", "write", "admin") if importer.may(role, queue)] == ["admin"]


def test_publish_is_a_role_of_the_whole_broker(tmp_path: Path) -> None:
    """In a single queue it would mean nothing."""
    access = loaded(tmp_path, GOOD.replace("[admin]", "[publish]"))
    importer = access.bearer(f"Bearer {SECRET}")
    assert importer is not None
    assert importer.may("publish", ALL_QUEUES)
    with pytest.raises(ConfigError, match=r"read publish under 'telemetry'; allowed: under '\*'"):
        loaded(tmp_path, GOOD.replace("telemetry: [read]", "telemetry: [read, publish]"))


def test_without_a_file_anybody_may_do_everything() -> None:
    """And nobody has a name."""
    access = QueueAccess.open_to_all()
    caller = access.bearer(None)
    assert caller is not None
    assert (caller.name, caller.may("admin", ALL_QUEUES), access.is_open) == ("", True, True)
    assert access.by_key("any") == caller
    access.read()()


def test_a_caller_may_send_so_many_requests(tmp_path: Path) -> None:
    """In bursts of one second's; then it is told how long to wait."""
    limited = GOOD.replace("name: dashboard", "name: dashboard\n  requests_per_second: 2")
    access = loaded(tmp_path, limited)
    caller, free = access.bearer(f"Bearer {TOKEN}"), access.bearer(f"Bearer {SECRET}")
    assert caller is not None
    assert free is not None
    assert [caller.seconds_to_wait(1000.0) for _ in range(3)] == [0, 0, 0.5]
    assert [caller.seconds_to_wait(1000.5) for _ in range(2)] == [0, 0.5]
    assert [caller.seconds_to_wait(2000.0) for _ in range(3)] == [0, 0, 0.5]
    assert {free.seconds_to_wait(1000.0) for _ in range(1000)} == {0}


def test_a_rare_request_may_be_sent() -> None:
    """A rate below one a second has a burst of one."""
    rate = RequestRate(0.1)
    assert [rate.take(5.0), rate.take(5.0), rate.take(15.0)] == [0, 10, 0]


def test_a_caller_is_shown_without_its_secret(tmp_path: Path) -> None:
    """A log line may hold a caller."""
    caller = loaded(tmp_path).bearer(f"Bearer {SECRET}")
    assert SECRET not in f"{caller} {caller!r}"


def test_a_file_is_read_again(tmp_path: Path) -> None:
    """Its tokens replace those of before; a wrong file changes nothing."""
    access = loaded(tmp_path)
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens: []")
    with pytest.raises(ConfigError, match="tokens: read"):
        access.read()()
    assert access.bearer(f"Bearer {TOKEN}") is not None
    file.write_text(GOOD.replace(DIGEST, hashlib.sha256(b"another").hexdigest()))
    access.read()()
    assert access.bearer(f"Bearer {TOKEN}") is None
    assert access.bearer("Bearer another") is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "tokens: read nothing; allowed: a value"),
        ("tokens: 5", "tokens: read 5"),
        ("tokens: [{name: a}]", "tokens.0.roles: read nothing"),
        ("tokens: [{name: a, roles: {}}]", "tokens.0: read neither; allowed: token_sha256 or"),
        (
            f"tokens: [{{name: a, roles: {{}}, token_sha256: {TOKEN}}}]",
            "tokens.0.token_sha256: read something else; allowed: 64 of 0-9 and a-f",
        ),
        (
            f"tokens: [{{name: a, roles: {{}}, token_sha256: {DIGEST}, access_key_id: b}}]",
            "tokens.0.access_key_id: read it without secret_file",
        ),
        (
            f"tokens: [{{name: a, roles: {{q: [delete]}}, token_sha256: {DIGEST}}}]",
            "tokens.0.roles.q.0: read 'delete'; allowed: 'read', 'write', 'admin' or 'publish'",
        ),
        ("tokens: [{name: a b, roles: {}, secret_file: importer.secret}]", "tokens.0.name: read"),
        ("tokens: [{name: a, roles: {}, secret_file: missing}]", "tokens.0.secret_file: read"),
        ("#\ntokens: [{name: a, roles: {}, secret_file: tokens.yaml}]", "text; allowed: 16 print"),
        (
            "tokens: [{name: a, roles: {}, more: 1}]",
            "more: read an unknown key; allowed: one of access_k",
        ),
        (GOOD.replace("name: importer", "name: dashboard"), "tokens.1.name: read dashboard again"),
        (
            GOOD.replace(DIGEST, hashlib.sha256(SECRET.encode()).hexdigest()),
            "tokens.1: read the token of dashboard again",
        ),
        (
            GOOD + "- {name: c, secret_file: other.secret, access_key_id: AKIAIMPORTER, roles: {}}",
            "tokens.2.access_key_id: read AKIAIMPORTER again; allowed: each once",
        ),
    ],
)
def test_mistakes_in_the_file_are_told(tmp_path: Path, text: str, told: str) -> None:
    """Each names its place; what may be a secret is not shown."""
    (tmp_path / "other.secret").write_text(SECRET[::-1])
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text)
    assert told in str(raised.value)
    assert TOKEN not in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_missing_file_is_told_with_the_key_that_names_it(tmp_path: Path) -> None:
    """As of every file of the policy file."""
    named_by = NamedBy("policy.yaml", "plugins.queue.tokens")
    with pytest.raises(ConfigError, match=r"policy\.yaml: plugins\.queue\.tokens: read .*missing"):
        QueueAccess.load(str(tmp_path / "missing"), named_by)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::1]:80", "localhost:80", "127.9.9.9:1"])
def test_this_machine_needs_no_token(bind: str) -> None:
    """Its addresses are not reached from elsewhere."""
    require_tokens(QueueAccess.open_to_all(), "plugins.queue.http", bind, "policy.yaml")


@pytest.mark.parametrize("bind", ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "queue.example:80"])
def test_another_address_needs_tokens(tmp_path: Path, bind: str) -> None:
    """The error says how to name them."""
    with pytest.raises(ConfigError, match=r"plugins\.queue\.sqs: read .*tokens: FILE"):
        require_tokens(QueueAccess.open_to_all(), "plugins.queue.sqs", bind, "policy.yaml")
    require_tokens(loaded(tmp_path), "plugins.queue.sqs", bind, "policy.yaml")
