"""What an operator does on the page: each in two clicks and a confirmation, with its outcome."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from selenium.webdriver.common.by import By

from tests.helpers.browser import Browser
from tests.helpers.operated import HOLDING, OPERATOR, operated_broker
from tests.helpers.paho_client import PahoClient, connect_properties

QUEUES: Final = {
    "queue": {
        "http": "127.0.0.1:0",
        "queues": {
            "jobs": {
                "topics": ["jobs/#"],
                "groups": {"default": {"max_receives": 1, "dead_letter_queue": "dead"}},
            },
            "dead": {},
        },
    }
}


def open_client(browser: Browser, url: str, name: str) -> None:
    """Log in and open a client from the list."""
    browser.log_in(url, *OPERATOR, "#/clients")
    browser.press(name)
    browser.wait_for("Connected for")


def ask_queue(url: str, path: str, body: Mapping[str, Any]) -> Any:
    """Send a request to the queue's own API."""
    request = urllib.request.Request(  # noqa: S310 (a server of this test)
        f"{url}/queues/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


def test_a_client_is_disconnected_once_it_is_confirmed(browser: Browser, tmp_path: Path) -> None:
    """The page says so, and so does the log, with the operator's name."""
    with (
        operated_broker(tmp_path) as broker,
        PahoClient(broker.port, "pump", reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        open_client(browser, broker.console_url, "pump")
        browser.press("Disconnect")
        browser.confirm("Cancel")
        browser.press("Disconnect")
        browser.confirm("Disconnect")
        browser.wait_for("Disconnected pump.")
        assert client.disconnected().is_failure
        broker.wait_for_match(f"{OPERATOR[0]}.*pump")


def test_a_client_whose_name_is_the_way_up_is_disconnected(
    browser: Browser, tmp_path: Path
) -> None:
    """Browsers resolve such a name in a path, however it is encoded."""
    with (
        operated_broker(tmp_path) as broker,
        PahoClient(broker.port, "..", reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        open_client(browser, broker.console_url, "..")
        browser.press("Disconnect")
        browser.confirm("Disconnect")
        browser.wait_for("Disconnected ...")
        assert client.disconnected().is_failure
        broker.wait_for_log("POST /api/clients/-/disconnect?named=..")


def test_a_client_is_banned_for_a_time_and_let_in_again(browser: Browser, tmp_path: Path) -> None:
    """It cannot connect until an operator lifts the ban, which stands in a list."""
    with (
        operated_broker(tmp_path) as broker,
        PahoClient(broker.port, "flooder", reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        open_client(browser, broker.console_url, "flooder")
        browser.press("Ban…")
        browser.write("Reason, for the log", "floods the site")
        browser.confirm("Ban")
        browser.wait_for("Banned flooder for 1 h.")
        client.disconnected()
        with PahoClient(broker.port, "flooder", reconnect_on_failure=False) as again:
            assert not again.connect()
        browser.open(broker.console_url + "/#/system")
        browser.wait_for("floods the site")
        browser.press("Lift flooder")
        browser.wait_for("Nobody is banned.")
        with PahoClient(broker.port, "flooder") as again:
            assert again.connect()


def test_held_messages_are_released_or_dropped(browser: Browser, tmp_path: Path) -> None:
    """The released one arrives; the dropped one never does, and the page counts it."""
    with (
        operated_broker(tmp_path, HOLDING) as broker,
        PahoClient(broker.port, "viewer") as viewer,
        PahoClient(broker.port, "camera") as camera,
    ):
        assert viewer.connect()
        assert camera.connect()
        assert viewer.subscribe("pictures/#", 1)
        open_client(browser, broker.console_url, "viewer")
        camera.publish("pictures/small", b"x")
        viewer.message()
        camera.publish("pictures/first", bytes(50_000))
        browser.press("Release held")
        browser.confirm("Release")
        browser.wait_for("Released 1 held message of viewer.")
        assert viewer.message().topic == "pictures/first"
        camera.publish("pictures/second", bytes(50_000))
        browser.press("Drop held")
        browser.confirm("Drop")
        browser.wait_for("Dropped 1 held message of viewer.")
        camera.publish("pictures/last", b"x")
        assert viewer.message().topic == "pictures/last"


def test_an_absent_session_is_ended(browser: Browser, tmp_path: Path) -> None:
    """The client that comes back finds no session."""
    lasting = connect_properties(SessionExpiryInterval=3_600)
    with operated_broker(tmp_path) as broker:
        with PahoClient(broker.port, "left") as client:
            assert client.connect(clean_start=False, properties=lasting)
        open_client(browser, broker.console_url, "left")
        browser.wait_for("not connected")
        browser.press("End session")
        browser.confirm("End session")
        browser.wait_for("Ended the session of left.")
        with PahoClient(broker.port, "left") as client:
            assert client.connect(clean_start=False, properties=lasting)
            assert not client.connack[0]


def test_a_retained_message_is_read_and_cleared(browser: Browser, tmp_path: Path) -> None:
    """New subscribers get the others alone."""
    with operated_broker(tmp_path) as broker, PahoClient(broker.port, "gate") as client:
        assert client.connect()
        client.publish("site/gate/state", b'{"open": true}', retain=True)
        client.publish("site/other", b"x", retain=True)
        browser.log_in(broker.console_url, *OPERATOR, "#/retained")
        browser.write("Topic filter", "site/+/state")
        browser.wait(lambda: browser.named("site/other", "a") is None)
        browser.press("site/gate/state")
        browser.wait_for('{"open": true}')
        browser.press("Clear")
        browser.confirm("Clear")
        browser.wait_for("Cleared the retained message of site/gate/state.")
        browser.wait(lambda: browser.named("site/other", "a"))
        assert client.subscribe("site/#")
        assert client.message().topic == "site/other"


def test_a_dead_letter_is_read_and_sent_back(browser: Browser, tmp_path: Path) -> None:
    """The queue of dead letters says whose they are; after a redrive it is empty."""
    with operated_broker(tmp_path, QUEUES) as broker, PahoClient(broker.port, "sender") as sender:
        assert sender.connect()
        sender.publish("jobs/7", b"broken job")
        group = "jobs/groups/default"
        received = ask_queue(broker.queue_url, f"{group}/receive", {"wait_seconds": 20})["messages"]
        handles = [one["receipt_handle"] for one in received]
        dead = {"action": "dead", "receipt_handles": handles}
        ask_queue(broker.queue_url, f"{group}/settle", dead)
        browser.log_in(broker.console_url, *OPERATOR, "#/queues")
        browser.press("dead")
        browser.wait_for("Holds the dead letters of jobs, default.")
        browser.press("Peek")
        browser.wait_for("broken job")
        browser.wait_for("group default of jobs")
        browser.press("Redrive…")
        browser.confirm("Redrive")
        browser.wait_for("Redriven: 1 message.")
        browser.wait_for("The queue is empty.")
        assert ask_queue(broker.queue_url, f"{group}/receive", {"wait_seconds": 20})["messages"]


def test_a_reload_says_what_it_did_and_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    """The words are the broker's own, and a wrong file changes nothing."""
    with operated_broker(tmp_path) as broker:
        browser.log_in(broker.console_url, *OPERATOR, "#/system")
        browser.press("Reload the policy file")
        browser.confirm("Reload")
        browser.wait(
            lambda: browser.driver.find_element(By.CSS_SELECTOR, "[role=status] .lines").text
        )
        policy = tmp_path / "policy.yaml"
        policy.write_text(policy.read_text() + "limts: {}\n")
        browser.press("Reload the policy file")
        browser.confirm("Reload")
        browser.wait_for("could not be used, and is as before")
        browser.wait_for("limts")


def test_the_log_level_is_changed_live(browser: Browser, tmp_path: Path) -> None:
    """From then on, the log has what the level lets through."""
    with operated_broker(tmp_path) as broker:
        browser.log_in(broker.console_url, *OPERATOR, "#/system")
        browser.press("Log level…")
        browser.choose("Level", "debug")
        browser.confirm("Change")
        browser.wait_for("The log level is debug.")
        with PahoClient(broker.port, "told of") as client:
            assert client.connect()
            broker.wait_for_log("told of")


def test_a_broker_is_backed_up_and_drained(browser: Browser, tmp_path: Path) -> None:
    """What an operator does before an upgrade; the page then says that the broker is not ready."""
    database = {"persistence": {"path": "sessions.db"}}
    with (
        operated_broker(tmp_path, **database) as broker,
        PahoClient(broker.port, "pump", reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        browser.log_in(broker.console_url, *OPERATOR, "#/system")
        browser.press("Back up…")
        browser.write("Directory", "copy")
        browser.confirm("Back up")
        browser.wait_for("to copy.")
        assert any((tmp_path / "copy").iterdir())
        browser.press("Drain…")
        browser.choose("Within", "30")
        browser.confirm("Drain")
        client.disconnected()
        browser.wait_for("Not ready")
        browser.wait_for("clients are being disconnected, and none are accepted")
