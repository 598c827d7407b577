"""Makes the pictures of docs/how-to/console.md: a broker with two slow links, seen in Chromium.

``python -m tests.helpers.console_images FOLDER SECONDS``: into that folder, after so much traffic.
The graphs of ten minutes are full after 600 s.
"""

from __future__ import annotations

import base64
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.helpers.browser import PHONE, Browser, chromium
from tests.helpers.operated import OPERATOR, operated_broker
from tests.helpers.paho_client import PahoClient
from tests.helpers.slow_link import Link, link_to

PLUGINS: Final = {
    "probing": {"probe_period": 0.5},
    "withholding": {"policy": "conservative", "threshold_s": 20_000, "threshold_l": 0.5},
    "queue": {
        "http": "127.0.0.1:0",
        "queues": {"pictures": {"topics": ["site/+/picture"], "groups": {"archive": {}}}},
    },
}

MOST_PIXELS: Final = {1_280: 1_400, PHONE[0]: 900}
"""The height of a picture by its width."""

SLOW: Final = ("site-3/display", "site-8/display")
TURN_SECONDS: Final = 0.1


@contextmanager
def traffic(port: int, link: Link) -> Iterator[None]:
    """Publish readings and pictures to displays for a block; two of them are behind the link."""
    ends = threading.Event()

    def client(stack: ExitStack, name: str, to: int) -> PahoClient:
        made = stack.enter_context(PahoClient(to, name))
        assert made.connect()
        return made

    def publish(pump: PahoClient, camera: PahoClient) -> None:
        for turn in itertools.count():
            for number in range(1 + turn // 150 % 5):
                pump.publish(f"site/{number}/reading", b'{"bar": 4.1}')
            if turn % 40 == 0:
                camera.publish("site/2/picture", bytes(120_000))
            if ends.wait(TURN_SECONDS):
                return

    with ExitStack() as stack:
        for number in range(1, 13):
            name = f"site-{number}/display"
            display = client(stack, name, link.port if name in SLOW else port)
            assert display.subscribe("site/+/reading", 1)
            assert display.subscribe("site/+/picture", 1)
        clients = (client(stack, "site-1/pump", port), client(stack, "site-2/camera", port))
        link.switch("bad")
        thread = threading.Thread(target=publish, args=clients)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def take(browser: Browser, url: str, view: str, file: Path) -> None:
    """Save a picture of a whole view."""
    browser.open(f"{url}/{view}")
    browser.wait(lambda: browser.run("return !document.querySelector('main').matches('.opening')"))
    width, height = browser.run("return [innerWidth, document.documentElement.scrollHeight]")
    browser.resize(width, min(height, MOST_PIXELS[width]))
    shot = browser.driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "webp", "quality": 85}
    )
    file.write_bytes(base64.b64decode(shot["data"]))


def main(browser: Browser, folder: Path, seconds: float) -> None:
    """Make the pictures."""
    with (
        tempfile.TemporaryDirectory() as work,
        operated_broker(Path(work), PLUGINS) as broker,
        link_to(broker) as link,
        ExitStack() as stack,
    ):
        browser.become()
        url = broker.console_url
        browser.log_in(url, *OPERATOR)
        stack.enter_context(traffic(broker.port, link))
        time.sleep(seconds)
        shots: list[tuple[str, str, Literal["light", "dark"], tuple[int, int]]] = [
            ("overview", "#/", "light", (1_280, 800)),
            ("overview-dark", "#/", "dark", (1_280, 800)),
            ("client", f"#/clients/{SLOW[0].replace('/', '%2F')}", "dark", (1_280, 800)),
            ("phone", "#/", "light", PHONE),
        ]
        for name, view, theme, size in shots:
            browser.become(size, theme, keeps_login=True)
            take(browser, url, view, folder / f"console-{name}.webp")


if __name__ == "__main__":
    with chromium() as window:
        main(window, Path(sys.argv[1]), float(sys.argv[2]))
