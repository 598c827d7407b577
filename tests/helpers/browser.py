"""Debian's Chromium, headless, driven as a user does: by what is written on the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.helpers.process import SECONDS

WIDE: Final = (1280, 800)
PHONE: Final = (380, 800)

Found = TypeVar("Found")

_CHANGING: Final = (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
"""What selenium says where the page changes between two looks at it."""

_NAMED: Final = """
return [...document.querySelectorAll(arguments[0])].find((one) =>
  (one.ariaLabel ?? one.textContent).trim() === arguments[1]
  && one.checkVisibility({opacityProperty: true, visibilityProperty: true}));
"""


class Browser:
    """One window.

    Attributes:
        driver: selenium's own.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def become(
        self,
        size: tuple[int, int] = WIDE,
        theme: Literal["light", "dark"] = "light",
        *,
        keeps_login: bool = False,
    ) -> None:
        """Be a window of another size on a system with this theme, and forget every login."""
        self.driver.get("about:blank")
        if not keeps_login:
            self._command("Network.clearBrowserCookies")
        self.resize(*size)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self._command("Emulation.setEmulatedMedia", features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in CSS pixels."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _command(self, name: str, **parameters: Any) -> None:
        self.driver.execute_cdp_cmd(name, parameters)

    def open(self, url: str) -> None:
        """Go to an address; another view of the same page is no new page."""
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Found]) -> Found:
        """Wait until a condition holds while the page may change; return what it says."""
        waiting = WebDriverWait(
            self.driver, SECONDS, poll_frequency=0.05, ignored_exceptions=_CHANGING
        )
        return waiting.until(lambda _: condition())

    @property
    def text(self) -> str:
        """All text that can be seen."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait_for(self, text: str) -> None:
        """Wait until a text can be seen.

        Raises:
            AssertionError: it cannot, with what can.
        """
        try:
            self.wait(lambda: text in self.text)
        except Exception as error:
            raise AssertionError(f"{text!r} is not in:\n{self.text}") from error

    def named(self, name: str, kinds: str = "button, a, summary") -> WebElement | None:
        """Return the first thing that can be seen and has this name; None for none."""
        found: WebElement | None = self.run(_NAMED, kinds, name)
        return found

    def press(self, name: str, kinds: str = "button, a, summary") -> None:
        """Press a button or link as soon as it is there and enabled."""

        def press() -> bool:
            found = self.named(name, kinds)
            if found is None or not found.is_enabled():
                return False
            found.click()
            return True

        self.wait(press)

    def confirm(self, verb: str) -> None:
        """Press a button of the dialog that asks, and wait until it has gone."""
        self.press(verb, "dialog[open] button")
        self.wait(lambda: not self.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))

    def field(self, label: str) -> WebElement:
        """Return the field with this label, as soon as it can be seen."""

        def find() -> WebElement | None:
            found = self.driver.find_elements(By.CSS_SELECTOR, "input, select")
            return next(
                (one for one in found if one.is_displayed() and one.accessible_name == label), None
            )

        found = self.wait(find)
        assert found is not None
        return found

    def write(self, label: str, text: str) -> None:
        """Write into a field, in place of what stands there."""
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def choose(self, label: str, value: str) -> None:
        """Choose what has this value."""
        Select(self.field(label)).select_by_value(value)

    def log_in(self, url: str, username: str, password: str, view: str = "#/") -> None:
        """Open a view of the page, which first asks who one is."""
        self.open(url + "/" + view)
        self.write("User", username)
        self.write("Password", password)
        self.press("Log in")
        self.wait_for("Log out")

    def problems(self) -> list[str]:
        """Return what the page has complained of since the last time, refused requests apart."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [
            one["message"] for one in entries if "Failed to load resource" not in one["message"]
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a Chromium for a block."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",  # which root may not have
        "--disable-dev-shm-usage",  # containers have little of it
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--font-render-hinting=none",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
