from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.config.policy import load_policy
from penstock.broker.import_mosquitto.__main__ import main
from tests.helpers.certificates import Authority


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the name of a file that is not there yet, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path("mosquitto.conf")


def test_a_policy_file_is_written_with_its_notes(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As comments at its top, and on standard error with the name of their file."""
    Path("more").mkdir()
    Path("more/a.conf").write_text("pid_file /run/ä\n")
    conf.write_text("listener 1883 127.0.0.1\nuser m\ninclude_dir more\n")
    assert main([str(conf), "-o", "policy.yaml"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.partition(": the service")[0] for line in told.err.splitlines()] == [
        "more/a.conf: line 1: pid_file /run/ä",
        "mosquitto.conf: line 2: user m",
    ]
    comments = [line for line in Path("policy.yaml").read_text().splitlines() if line[:1] == "#"]
    assert comments[0] == "# Made from mosquitto.conf by penstock import-mosquitto."
    assert comments[-2].startswith("# more/a.conf, line 1: pid_file /run/ä: ")
    assert comments[-1].startswith("# line 2: user m: ")
    assert list(load_policy("policy.yaml").listeners) == ["mqtt-1883"]


def test_without_a_name_it_goes_to_standard_output(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written anywhere else."""
    conf.write_text("")
    assert main([str(conf)]) == 0
    told = capsys.readouterr()
    assert "bind: localhost:1883" in told.out
    assert told.err == ""
    assert list(Path().iterdir()) == [conf]


def test_a_mistake_ends_with_status_2_and_writes_nothing(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line, what was read, what is allowed."""
    conf.write_text("listener 1883\nmax_qos 3\n")
    assert main([str(conf), "-o", "policy.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("penstock import-mosquitto: mosquitto.conf: line 2, max_qos: read 3;")
    assert not Path("policy.yaml").exists()


def test_what_the_broker_would_refuse_here_is_told_with_status_1(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written: the certificates may be on another machine."""
    conf.write_text("listener 8883\ncertfile none.crt\nkeyfile none.key\n")
    assert main([str(conf), "-o", "policy.yaml"]) == 1
    told = capsys.readouterr().err
    assert "listeners.mqtt-8883.certfile: read none.crt; allowed: a path that exists" in told
    assert "certfile: none.crt" in Path("policy.yaml").read_text()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("persistence_location /no/such/folder", "persistence.path: read no folder /no/such"),
        ("password_file none", "plugins.access.password_file: read none: No such file"),
        ("password_file plain", "plain: line 1: read something else for user ann"),
        ("acl_file plain", "plain: line 1: read 'ann:secret'"),
    ],
)
def test_what_the_start_would_read_is_read(
    conf: Path, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    """Status 1 names the files of users and topics, and the folder of the database, too."""
    Path("plain").write_text("ann:secret\n")
    conf.write_text(f"listener 1883\npersistence true\n{line}\n")
    assert main([str(conf), "-o", "policy.yaml"]) == 1
    assert told in capsys.readouterr().err
    assert Path("policy.yaml").exists()


@pytest.mark.parametrize("is_of_bridge", [False, True], ids=["listener", "bridge"])
def test_a_key_of_another_certificate_is_told(
    conf: Path, capsys: pytest.CaptureFixture[str], *, is_of_bridge: bool
) -> None:
    """The start would end with it; so would a revocation list that is none."""
    authority = Authority(Path())
    certfile, other = authority.issue(file="a").certfile, authority.issue(file="b").keyfile
    above, its = ("connection c\naddress a\ntopic t\n", "bridge_") if is_of_bridge else ("", "")
    files = f"{above}{its}cafile {authority.cafile}\n{its}certfile {certfile}\n"
    conf.write_text(f"listener 8883\n{files}{its}keyfile {other}\n")
    assert main([str(conf), "-o", "policy.yaml"]) == 1
    told = capsys.readouterr().err
    place = "plugins.uplink.uplinks.c.upstream.tls" if is_of_bridge else "listener mqtt-8883"
    assert f"{place}: keyfile {other}: not the key of certfile {certfile}" in told
    if not is_of_bridge:
        key = authority.issue(file="a").keyfile
        conf.write_text(f"listener 8883\n{files}keyfile {key}\ncrlfile {certfile}\n")
        assert main([str(conf)]) == 1
        assert f"listener mqtt-8883: crlfile {certfile}: " in capsys.readouterr().err


def test_a_password_of_a_bridge_is_written_beside_the_policy_or_asked_for(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the policy nor the terminal shows it; a file of its name is not overwritten."""
    bridge = "connection c\naddress a\ntopic t\nusername u\npassword s3cret\n"
    conf.write_text(f"listener 1883\n{bridge}")
    assert main([str(conf)]) == 0
    told = capsys.readouterr()
    assert "remote_password" not in told.out
    assert "password ...: write the password into a file c.password" in told.err
    assert "s3cret" not in told.out + told.err
    assert main([str(conf), "-o", "policy.yaml"]) == 0
    assert Path("c.password").read_text() == "s3cret\n"
    assert f"password_file: {Path('c.password').resolve()}" in Path("policy.yaml").read_text()
    Path("policy.yaml").unlink()
    assert main([str(conf), "-o", "policy.yaml"]) == 2
    assert "c.password: cannot be written: File exists" in capsys.readouterr().err
    assert not Path("policy.yaml").exists()


def test_no_file_is_overwritten(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have been worked on."""
    conf.write_text("")
    Path("policy.yaml").write_text("mine")
    assert main([str(conf), "-o", "policy.yaml"]) == 2
    assert "policy.yaml: cannot be written: File exists" in capsys.readouterr().err
    assert Path("policy.yaml").read_text() == "mine"
