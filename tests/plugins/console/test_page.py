"""What an operator sees on the page, in Debian's Chromium, of a real broker."""

from __future__ import annotations

import re
from pathlib import Path

from selenium.webdriver.common.by import By

from tests.helpers import console_images
from tests.helpers.browser import Browser
from tests.helpers.operated import HOLDING, OPERATOR, VIEWER, operated_broker
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import ROOT, anonymous_policy, running_broker

PAGE = ROOT / "plugins" / "console" / "page"

HOSTILE = "<img src=x onerror=document.title='taken'>\u202egnp.exe"


def test_who_wants_to_look_logs_in_first(browser: Browser, tmp_path: Path) -> None:
    """A wrong password is told in words; the right one leads to the view that was asked for."""
    with operated_broker(tmp_path) as broker:
        browser.open(broker.console_url + "/#/retained")
        browser.write("User", OPERATOR[0])
        browser.write("Password", "wrong")
        browser.press("Log in")
        browser.wait_for("The user name or password is wrong.")
        assert "Retained messages" not in browser.text
        browser.write("Password", OPERATOR[1])
        browser.press("Log in")
        browser.wait_for("Retained messages")
        browser.wait_for(f"{OPERATOR[0]}, admin")
        browser.press("Log out")
        browser.wait_for("Password")
        assert "Retained" not in browser.text


def test_a_client_that_is_late_is_found_from_the_overview_and_says_why(
    browser: Browser, tmp_path: Path
) -> None:
    """Two clicks from the overview to the reason."""
    with (
        operated_broker(tmp_path, HOLDING) as broker,
        PahoClient(broker.port, "cam/viewer 7") as viewer,
        PahoClient(broker.port, "camera") as camera,
    ):
        assert viewer.connect()
        assert camera.connect()
        assert viewer.subscribe("pictures/#", 1)
        browser.log_in(broker.console_url, *OPERATOR)
        camera.publish("pictures/small", b"x")
        viewer.message()
        browser.wait(lambda: browser.named("cam/viewer 7", "a"))
        camera.publish("pictures/large", bytes(50_000))
        browser.wait_for("1 message held back for slow links")
        browser.press("cam/viewer 7")
        browser.wait_for("because conservative: L_now")
        browser.wait_for("50,000 bytes on pictures/large")
        browser.wait_for("held now, for")
        assert browser.driver.title == "cam/viewer 7 · Penstock"


def test_names_that_strangers_chose_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    """A client id or a topic is no markup, and hides nothing."""
    shown = HOSTILE.replace("\u202e", "\\u202e")
    with operated_broker(tmp_path) as broker, PahoClient(broker.port, HOSTILE) as client:
        assert client.connect()
        client.publish(HOSTILE, b"<script>document.title='taken'</script>", retain=True)
        assert client.subscribe(HOSTILE)
        browser.log_in(broker.console_url, *OPERATOR)
        for view in ("#/", "#/clients", "#/subscriptions", "#/retained"):
            browser.open(broker.console_url + "/" + view)
            browser.wait(lambda: browser.named(shown, "a") or browser.named(shown, "td"))
        browser.press(shown)  # of the retained message
        browser.wait_for("<script>document.title='taken'</script>")
        browser.open(broker.console_url + "/#/clients")
        browser.press(shown)
        browser.wait_for("Subscribed to")
        browser.wait_for("Connected for")
        assert not browser.driver.find_elements(By.CSS_SELECTOR, "main img, main script")
        assert "taken" not in browser.driver.title.removeprefix(shown)


def test_a_viewer_sees_everything_and_no_button_that_changes_something(
    browser: Browser, tmp_path: Path
) -> None:
    """The server would refuse it; the page does not offer it."""
    queues = {"queue": {"http": "127.0.0.1:0", "queues": {"jobs": {"topics": ["jobs/#"]}}}}
    with operated_broker(tmp_path, queues) as broker, PahoClient(broker.port, "plain") as client:
        assert client.connect()
        client.publish("state", b"on", retain=True)
        browser.log_in(broker.console_url, *VIEWER)
        views = {
            "#/clients/plain": "Connected for",
            "#/retained": "state",
            "#/retained/state": "Payload",
            "#/queues/jobs": "Groups",
            "#/system": "Bans",
        }
        for view, text in views.items():
            browser.open(broker.console_url + "/" + view)
            browser.wait_for(text)
            main = browser.driver.find_element(By.ID, "main")
            words = {one.text for one in main.find_elements(By.CSS_SELECTOR, "button:not(th *)")}
            assert words <= {"", "Peek", "Previous", "Next", "First page"}, view


def test_a_topic_is_watched_live(browser: Browser, tmp_path: Path) -> None:
    """What matches appears with its client and its size, and what does not match does not."""
    with operated_broker(tmp_path) as broker, PahoClient(broker.port, "pump 3") as client:
        assert client.connect()
        browser.log_in(broker.console_url, *OPERATOR, "#/tail")
        browser.write("Topic filter", "plant/+/state")
        browser.press("Watch this")
        browser.wait_for("Watching")
        assert "filter=plant" in browser.driver.current_url

        def is_seen() -> bool:
            client.publish("plant/3/state", b"0123456789", 0)
            return browser.named("plant/3/state", "td") is not None

        browser.wait(is_seen)
        client.publish("plant/3/other", b"x")
        row = browser.driver.find_element(By.CSS_SELECTOR, "tbody tr").text
        assert "publish" in row
        assert "pump 3" in row
        assert "10 B" in row
        assert "plant/3/other" not in browser.text
        browser.press("Stop")
        browser.wait_for("Stopped")
        browser.write("Topic filter", "plant/#/state")
        browser.press("Watch this")
        browser.wait_for("Stopped: ")
        browser.wait_for("plant/#/state")


def test_what_fills_queues_is_shown_by_topic_and_size(browser: Browser, tmp_path: Path) -> None:
    """An absent client's messages are found from the topic that they have."""
    with operated_broker(tmp_path, HOLDING) as broker, PahoClient(broker.port, "sender") as sender:
        with PahoClient(broker.port, "absent") as absent:
            assert absent.connect(
                clean_start=False, properties=connect_properties(SessionExpiryInterval=3_600)
            )
            assert absent.subscribe("pictures/#", 1)
        assert sender.connect()
        for _ in range(3):
            sender.publish("pictures/gate", bytes(100_000))
        browser.log_in(broker.console_url, *OPERATOR, "#/topics")
        browser.wait(lambda: browser.named("pictures/gate", "a"))
        row = browser.driver.find_element(By.CSS_SELECTOR, "tbody tr").text
        assert "large" in row
        assert "293 KiB" in row


def test_an_uplink_says_whether_its_cloud_is_reached(browser: Browser, tmp_path: Path) -> None:
    """Each lane by itself; when the cloud's broker has gone, why, and when it is tried again."""
    site, cloud = tmp_path / "site", tmp_path / "cloud"
    site.mkdir()
    cloud.mkdir()
    with running_broker(anonymous_policy(), cloud) as far:
        uplink = {"upstream": {"address": f"127.0.0.1:{far.port}"}, "up": [{"filter": "sensors/#"}]}
        plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}
        with operated_broker(site, plugins) as broker:
            browser.log_in(broker.console_url, *OPERATOR, "#/uplinks")
            browser.wait_for(f"127.0.0.1:{far.port}")
            browser.wait(lambda: "not connected" not in browser.text)
            far.stop()
            browser.wait_for("not connected")
            browser.open(broker.console_url + "/#/")
            browser.wait_for("uplink cloud is not connected")


def test_without_users_one_looks_and_with_a_token_one_acts(
    browser: Browser, tmp_path: Path
) -> None:
    """On this machine the page needs no login until there are users or tokens."""
    console = {"http": "127.0.0.1:0"}
    with running_broker(anonymous_policy({"console": console}), tmp_path) as broker:
        browser.open(broker.console_url + "/#/system")
        browser.wait_for("Without login: reading only")
        browser.wait_for("Ready")
        assert browser.named("Reload the policy file") is None
    tokens = tmp_path / "tokens"
    tokens.write_text("ci admin a-token-of-the-console\n")
    tokens.chmod(0o600)
    console["token_file"] = str(tokens)
    with running_broker(anonymous_policy({"console": console}), tmp_path) as broker:
        browser.open(broker.console_url + "/#/system")
        browser.write("Token", "a-token-of-the-console")
        browser.press("Log in")
        browser.wait_for("ci, admin")
        browser.wait(lambda: browser.named("Reload the policy file"))


def test_the_page_is_small_and_takes_nothing_from_elsewhere() -> None:
    """And no text of a stranger can become markup in it."""
    files = [file for file in PAGE.iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000
    text = "".join(file.read_text() for file in files)
    assert set(re.findall(r"https?://[^\s\"'`)]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_the_pictures_of_the_docs_can_be_made_again(browser: Browser, tmp_path: Path) -> None:
    """Each that the page in docs/ shows, small enough for a repository."""
    console_images.main(browser, tmp_path, seconds=0)
    page = (ROOT / "docs" / "how-to" / "console.md").read_text()
    shown = set(re.findall(r"images/(console-[^)]*)", page))
    assert {file.name for file in tmp_path.iterdir()} == shown
    for file in (*tmp_path.iterdir(), *(ROOT / "docs" / "images" / name for name in shown)):
        assert file.stat().st_size < 150_000
