"""``penstock uplink``, ``log``, ``backup`` and ``drain``, on a real broker."""

from __future__ import annotations

from pathlib import Path

from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.commands import penstock
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import anonymous_policy, running_broker
from tests.plugins.console.commands.conftest import Operated


def test_the_level_of_the_log_is_shown_and_changed(operated: Operated) -> None:
    """At once, without a restart."""
    assert operated.run("log", "level").out == "info\n"
    assert operated.run("log", "level", "debug", "--json").json == {"level": "debug"}
    with PahoClient(operated.broker.port, "loud") as client:
        assert client.connect()
        operated.broker.wait_for_log("loud")
    assert operated.run("log", "level", "info").out == "info\n"
    wrong = operated.run("log", "level", "loud")
    assert (wrong.status, "'loud'" in wrong.err) == (2, True)


def test_all_is_backed_up_while_it_runs(operated: Operated) -> None:
    """On the broker's machine; a second backup does not overwrite the first."""
    folder = operated.folder / "copy"
    done = operated.run("backup", str(folder))
    assert done.status == 0, done.err
    assert done.out.endswith(f" bytes written to {folder}\n")
    assert any(folder.iterdir())
    done = operated.run("backup", str(folder))
    assert (done.status, done.out) == (2, "")
    assert str(folder) in done.err


def test_why_an_uplink_is_not_connected(tmp_path: Path) -> None:
    """Each lane has its state; an unknown name is told beside those that there are."""
    with reserved_port() as port:
        upstream = {"address": f"127.0.0.1:{port}"}
        uplinks = {"cloud": {"upstream": upstream, "up": [{"filter": "#"}]}}
        plugins = {
            "console": {"http": "127.0.0.1:0"},
            "uplink": {"site": "berlin", "uplinks": uplinks},
        }
        with running_broker(anonymous_policy(plugins), tmp_path) as broker:
            broker.wait_for_log("uplink cloud")
            url = ("--url", broker.console_url)
            rows = penstock("uplink", "ls", *url).rows
            assert rows[0][:3] == ["UPLINK", "LANE", "CONNECTED"]
            assert rows[1][0] == "cloud"
            assert "no" in rows[1]
            shown = penstock("uplink", "show", "cloud", *url)
            assert "refused" in shown.out, shown
            assert penstock("uplink", "show", "cloud", "--json", *url).json["name"] == "cloud"
            done = penstock("uplink", "show", "clowd", *url)
            assert (done.status, done.err) == (
                1,
                "penstock uplink: uplink: read 'clowd'; allowed: cloud\n",
            )


def test_a_broker_is_drained_before_its_stop(tmp_path: Path) -> None:
    """Clients leave, no new ones come; not without a yes."""
    plugins = {"console": {"http": "127.0.0.1:0", "anonymous": "admin"}}
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        url = ("--url", broker.console_url)
        with PahoClient(broker.port, "leaves") as client:
            assert client.connect()
            assert penstock("drain", *url).status == 2
            done = penstock("drain", "--seconds", "0", "--yes", *url)
            assert (done.status, done.out) == (0, "drains within 0 s\n")
            client.disconnected()
        assert penstock("drain", "--yes", "--json", *url).json == {"draining": True}
