"""How the page behaves: small windows, keyboards, colours, silence, and very many clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.console.callers import LONGEST_SECONDS
from tests.helpers.browser import PHONE, Browser
from tests.helpers.operated import HOLDING, OPERATOR, operated_broker
from tests.helpers.paho_client import PahoClient
from tests.helpers.virtual import VirtualBroker
from tests.plugins.console.running import console

VIEWS: Final = {
    "#/": "Needs attention",
    "#/clients": "Worst links",
    f"#/clients/{'long' * 50}": "Connected for",
    "#/topics": "Nothing waits",
    "#/subscriptions": "Topic filter",
    "#/retained": "topic/longlong",
    "#/queues": "pictures-of-all-sites",
    "#/queues/pictures-of-all-sites": "Set aside",
    "#/no-such": "There is nothing here",
    "#/tail": "Watching",
    "#/system": "Readiness",
}
"""The views of a broker with one client and one queue, and a text of each."""

PLUGINS: Final = {
    **HOLDING,
    "queue": {
        "http": "127.0.0.1:0",
        "queues": {"pictures-of-all-sites": {"topics": ["pictures/#"]}},
    },
}

CONTRASTS: Final = """
const luminance = ([r, g, b]) => [r, g, b]
  .map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
const read = (colour) => colour.match(/[\\d.]+/g).map(Number);
const ground = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const colour = read(getComputedStyle(one).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
};
return [...document.querySelectorAll("body *")].filter((node) =>
    node.checkVisibility() && !node.disabled
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((node) => {
    const [one, other] = [read(getComputedStyle(node).color), ground(node)].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return [ratio, node.textContent.slice(0, 40)];
  });
"""
"""Answers the contrast of each text that can be seen, by the formula of WCAG 2, and the text."""


IN_A_HURRY: Final = """
const [later, ask, Source] = [setTimeout, fetch, EventSource];
window.asked = 0;
window.updates = 0;
window.sources = [];
window.setTimeout = (act, _, ...given) => later(act, 1, ...given);
window.fetch = async (what, how) => {
  window.asked++;
  const answer = await ask(what, how);
  if (!what.startsWith("api/overview")) return answer;
  const told = await answer.json();
  told.at += 20 * ++window.updates;
  return Response.json(told);
};
window.EventSource = class extends Source {
  constructor(...given) {
    super(...given);
    window.sources.push(this);
  }
};
"""
"""Each update follows the one before it at once, and tells a time that is 20 s later."""


@contextmanager
def in_a_hurry(browser: Browser) -> Iterator[None]:
    """Have a page that is opened in the block live faster."""
    add, remove = (f"Page.{verb}ScriptToEvaluateOnNewDocument" for verb in ("add", "remove"))
    added = browser.driver.execute_cdp_cmd(add, {"source": IN_A_HURRY})
    try:
        yield
    finally:
        browser.driver.execute_cdp_cmd(remove, added)


def held(browser: Browser) -> dict[str, int]:
    """Return the nodes and listeners that a page holds."""
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    counts: dict[str, int] = browser.driver.execute_cdp_cmd("Memory.getDOMCounters", {})
    return {kind: counts[kind] for kind in ("nodes", "jsEventListeners")}


def visit(browser: Browser, url: str, view: str) -> None:
    """Open a view and wait until it has its figures."""
    browser.open(f"{url}/{view}")
    browser.wait_for(VIEWS[view])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_lies_beside_the_screen_and_all_can_be_read(
    theme: Literal["light", "dark"], browser: Browser, tmp_path: Path
) -> None:
    """380 pixels are enough for each view, and each text has a contrast of 4.5 or more."""
    browser.become(PHONE, theme)
    with (
        operated_broker(tmp_path, PLUGINS) as broker,
        PahoClient(broker.port, "long" * 50) as client,
    ):
        assert client.connect()
        assert client.subscribe("a/topic/filter/" + "long" * 50, 1)
        client.publish("topic/" + "long" * 50, b"x" * 300, retain=True)
        browser.open(broker.console_url)
        browser.write("User", OPERATOR[0])
        browser.write("Password", OPERATOR[1])
        browser.press("Log in")
        browser.wait_for("Needs attention")
        for view in VIEWS:
            visit(browser, broker.console_url, view)
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= PHONE[0], view
            found = browser.run(CONTRASTS)
            assert len(found) > 2, view
            assert not [pale for pale in found if pale[0] < 4.5], view


def test_nothing_jumps_while_figures_change(browser: Browser, tmp_path: Path) -> None:
    """Of each view, by the measure that browsers have for it; a good page has 0.1 at most."""
    note = "(found) => window.shifts.push(...found.getEntries())"
    watch = f"new PerformanceObserver({note}).observe({{type: 'layout-shift'}})"
    jumps = """
      return shifts.splice(0).filter((one) => !one.hadRecentInput)
        .map((one) => [one.value, one.sources.map(({node}) => node?.textContent.slice(0, 80))]);
    """
    with (
        operated_broker(tmp_path, PLUGINS) as broker,
        PahoClient(broker.port, "long" * 50) as client,
        in_a_hurry(browser),
    ):
        assert client.connect()
        assert client.subscribe("#", 1)
        client.publish("topic/" + "long" * 50, b"x" * 300, retain=True)
        browser.log_in(broker.console_url, *OPERATOR)
        browser.run(f"window.shifts = []; {watch}")
        for view in VIEWS:
            visit(browser, broker.console_url, view)
            for n in range(3):
                client.publish(f"pictures/{n}", bytes(50_000))
                least = 0 if view in ("#/no-such", "#/tail") else browser.run("return asked") + 3
                browser.wait(lambda: browser.run("return asked") >= least)  # noqa: B023 (called here)
            found = browser.run(jumps)
            assert sum(value for value, _ in found) <= 0.1, (view, found)


def test_the_keyboard_alone_reaches_an_action_and_confirms_it(
    browser: Browser, tmp_path: Path
) -> None:
    """From the address bar to the list, to a client, to its end; Escape takes back."""

    def press(*keys: str) -> None:
        ActionChains(browser.driver).send_keys(*keys).perform()

    def go_to(name: str) -> None:
        """Press Tab until something with this name has the focus, which can be seen."""
        for _ in range(80):
            press(Keys.TAB)
            focused = browser.driver.switch_to.active_element
            if focused.accessible_name == name:
                outline = focused.value_of_css_property("outline-style")
                assert outline == "solid", f"the focus on {name} cannot be seen"
                return
        raise AssertionError(f"Tab does not reach {name}")

    with (
        operated_broker(tmp_path) as broker,
        PahoClient(broker.port, "pump", reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        browser.log_in(broker.console_url, *OPERATOR)
        browser.open(broker.console_url + "/#/clients")
        browser.wait(lambda: browser.named("pump", "a"))
        browser.run("document.activeElement.blur()")
        go_to("Skip to the content")
        press(Keys.ENTER)
        go_to("pump")
        press(Keys.ENTER)
        browser.wait_for("Connected for")
        go_to("Disconnect")
        press(Keys.ENTER)
        browser.wait_for("Disconnect pump?")
        press(Keys.ESCAPE)
        browser.wait(lambda: "Disconnect pump?" not in browser.text)
        assert browser.driver.switch_to.active_element.accessible_name == "Disconnect"
        press(Keys.ENTER)
        browser.wait_for("Disconnect pump?")
        go_to("Disconnect")
        press(Keys.ENTER)
        browser.wait_for("Disconnected pump.")
        client.disconnected()


def test_a_broker_that_restarts_is_told_and_the_page_comes_back(
    browser: Browser, tmp_path: Path
) -> None:
    """What is shown is said to be old; afterwards the same view lives again."""
    with reserved_port() as port:
        http = f"127.0.0.1:{port}"
        with operated_broker(tmp_path, http=http) as broker:
            browser.log_in(broker.console_url, *OPERATOR, "#/system")
            browser.wait_for("Readiness")
        browser.wait_for("The broker does not answer")
        assert "what is shown is old" in browser.text
        with operated_broker(tmp_path, http=http) as broker:
            browser.wait_for("Your login has ended")
            browser.write("User", OPERATOR[0])
            browser.write("Password", OPERATOR[1])
            browser.press("Log in")
            browser.wait_for("Readiness")
            assert "does not answer" not in browser.text
    browser.problems()  # of requests without an answer


def test_a_hidden_tab_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    """A page that nobody sees costs the broker nothing; seen again, it goes on."""
    driver = browser.driver
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"

    def asked() -> int:
        return int(browser.run("return performance.getEntriesByType('resource').length"))

    with operated_broker(tmp_path) as broker:
        browser.log_in(broker.console_url, *OPERATOR, "#/system")
        hidden = driver.current_window_handle
        browser.run(hide + change, True)
        driver.switch_to.new_window("tab")
        seen = driver.current_window_handle
        browser.open(broker.console_url + "/#/system")
        counts = []
        for n_turns in (1, 4):  # a request that was under way may end in the first
            browser.wait_for("Readiness")
            least = asked() + n_turns
            browser.wait(lambda: asked() >= least)  # noqa: B023 (called here)
            driver.switch_to.window(hidden)
            counts.append(asked())
            driver.switch_to.window(seen)
        assert counts[0] == counts[1]
        driver.close()
        driver.switch_to.window(hidden)
        browser.run(hide + change, False)
        browser.wait(lambda: asked() > counts[1])


def test_a_page_that_is_open_for_long_holds_no_more(browser: Browser, tmp_path: Path) -> None:
    """Of the overview the last ten minutes, of a tail 300 lines, and one stream at most."""
    points = "return document.querySelector('.tile .line').getAttribute('d').split('L').length"

    def update(times: int) -> dict[str, int]:
        least = browser.run("return window.updates") + times
        browser.wait(lambda: browser.run("return window.updates") >= least)
        return held(browser)

    with (
        operated_broker(tmp_path) as broker,
        PahoClient(broker.port, "pump") as client,
        in_a_hurry(browser),
    ):
        assert client.connect()
        browser.log_in(broker.console_url, *OPERATOR)
        before, n_updates = update(100), 400
        after = update(n_updates)
        assert all(after[kind] - before[kind] < n_updates / 4 for kind in before), (before, after)
        assert browser.run(points) <= 600 / 20 + 1

        for n in range(10):
            browser.open(f"{broker.console_url}/#/tail?filter=t/%23&n={n}")
            browser.wait_for("Watching")
            browser.open(broker.console_url + "/#/topics")
            browser.wait_for("Nothing waits")
        browser.open(broker.console_url + "/#/tail")
        browser.wait_for("Watching")
        are_closed = browser.run("return window.sources.map((one) => one.readyState === 2)")
        assert are_closed == [True] * 10 + [False]

        def publish(batch: int) -> int:
            for n in range(100):
                client.publish(f"t/{batch}/{n}", b"x", 0)
            client.publish(f"end/{batch}", b"x", 1)
            browser.wait(lambda: browser.named(f"end/{batch}", "td"))
            return int(browser.run("return document.querySelectorAll('tbody tr').length"))

        assert [publish(batch) > 300 for batch in range(8)] == [False] * 8
        browser.wait(lambda: browser.run("return document.querySelectorAll('tr').length") == 301)


@pytest.mark.parametrize(("view", "text"), [("#/clients", "pump"), ("#/tail", "Watching")])
async def test_a_login_that_ends_while_the_page_is_open_brings_the_form(
    view: str, text: str, browser: Browser, tmp_path: Path
) -> None:
    """It says so; after another login the same view goes on."""
    broker = VirtualBroker()
    client = broker.connect("pump")
    (tmp_path / "tokens").write_text("ines admin a-token-of-an-admin\n")

    def log_in() -> None:
        browser.write("Token", "a-token-of-an-admin")
        browser.press("Log in")
        browser.wait_for(text)
        assert browser.driver.current_url.endswith(view)

    def log_in_again() -> None:
        browser.wait_for("Your login has ended")
        assert not browser.named("Clients", "a")
        log_in()

    async with console(broker, token_file=str(tmp_path / "tokens")) as plugin:
        await asyncio.to_thread(browser.open, f"{plugin.http_url}/{view}")
        await asyncio.to_thread(log_in)
        broker.now += LONGEST_SECONDS + 1
        client.publish("t", b"x")  # a tail looks then whether the login goes on
        await asyncio.to_thread(log_in_again)


async def test_ten_thousand_clients_are_searched_sorted_and_shown_by_pages(
    browser: Browser,
) -> None:
    """The page holds a hundred rows at a time, whatever the broker has."""
    broker = VirtualBroker()
    for number in range(10_000):
        broker.connect(f"device-{number:05}", username="fleet")

    def look(url: str) -> None:
        browser.open(url + "/#/clients?sort=client_id")
        browser.wait_for("1 to 100 of 10,000")
        assert browser.named("device-00000", "a")
        browser.press("Next")
        browser.wait_for("101 to 200 of 10,000")
        assert browser.named("device-00100", "a")
        browser.press("Previous")
        browser.wait_for("1 to 100 of 10,000")
        browser.press("Client")
        browser.wait(lambda: browser.named("device-09999", "a"))
        browser.write("Search", "device-0777")
        browser.wait_for("1 to 10 of 10")
        assert "search=device-0777" in browser.driver.current_url
        assert browser.run("return document.querySelectorAll('tbody tr').length") == 10

    async with console(broker) as plugin:
        await asyncio.to_thread(look, plugin.http_url)
