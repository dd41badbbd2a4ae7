"""A headless Chromium, and the page in it as a person uses it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium.common.exceptions import NoSuchElementException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys as Press
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait


@contextmanager
def chromium() -> Iterator[Chrome]:
    """Run Debian's Chromium. Raises AssertionError if it is not installed, since nothing else tests the page."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser is not None, "the page is tested in a browser: apt-get install chromium chromium-driver"
    assert driver is not None, "the page is tested through a driver: apt-get install chromium chromium-driver"
    options = ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


class Page:
    """The page at a port."""

    def __init__(self, chrome: Chrome, port: int) -> None:
        """Open the page anew, in a window of an ordinary size."""
        self.chrome, self.port = chrome, port
        chrome.set_window_size(1200, 800)
        chrome.get(f"http://127.0.0.1:{port}/")
        self.until(lambda: chrome.execute_script("return document.body.dataset.isReady"), "the page does not begin")
        chrome.get_log("browser")  # of the page before

    def find(self, name: str) -> WebElement:
        """Return the element with this id."""
        return self.chrome.find_element(By.ID, name)

    def text(self, name: str) -> str:
        """Return all text of the element."""
        return str(self.find(name).get_property("textContent"))

    def fill(self, **values: Any) -> None:
        """Type into fields; `max_tokens` is the one with the id max-tokens. `sides` is the choice of that value."""
        for name, value in values.items():
            if name == "sides":
                self.chrome.find_element(By.CSS_SELECTOR, f"[name=sides][value={value}]").click()
                continue
            element = self.find(name.replace("_", "-"))
            if element.tag_name != "select":
                element.clear()
            if len(str(value)) > 1000:  # pasted
                self.chrome.execute_script("arguments[0].value = arguments[1]", element, value)
            else:
                element.send_keys(str(value))

    def send(self, **values: Any) -> None:
        """Type into fields as `fill` does, and send the form by its keyboard shortcut."""
        self.fill(**values)
        self.find("prompt").send_keys(Press.CONTROL, Press.ENTER)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until the condition holds."""
        WebDriverWait(self.chrome, 60, poll_frequency=0.02).until(lambda _: is_so(), what)

    def until_ended(self) -> str:
        """Wait until the answer has ended, and return the page's status."""
        self.until(lambda: self.find("send").is_enabled() and self.text("status"), "the answer does not end")
        return self.text("status")

    def answer(self, side: str = "with", *, turn: int = -1) -> WebElement:
        """Return the answer of a turn that was written with, or "without" the draft.

        Raises NoSuchElementException, over which `until` waits, as long as it is not there.
        """
        answers = self.chrome.find_elements(By.CSS_SELECTOR, f".answer[data-side={side}]")
        if not answers:
            raise NoSuchElementException(f"no answer {side} the draft")
        return answers[turn]

    def output(self, side: str = "with", *, turn: int = -1) -> str:
        """Return an answer's text, without the rejected drafts that are shown in it."""
        script = "return [...arguments[0].querySelectorAll('.output > span')].map((e) => e.textContent).join('')"
        return str(self.chrome.execute_script(script, self.answer(side, turn=turn)))

    def spans(self, side: str = "with") -> list[tuple[str, str]]:
        """Return the pieces of an answer's text, each with its kind: accepted, written or rejected."""
        script = "return [...arguments[0].querySelectorAll('.output > *')].map((e) => [e.textContent, e.className])"
        return [(text, kind) for text, kind in self.chrome.execute_script(script, self.answer(side))]

    def number(self, name: str, side: str = "with") -> str:
        """Return one of the numbers above an answer."""
        cell = self.answer(side).find_element(By.CSS_SELECTOR, f"[data-number={name}]")
        return str(cell.get_property("textContent"))

    def note(self, side: str = "with") -> str:
        """Return what is said below an answer."""
        return str(self.answer(side).find_element(By.CLASS_NAME, "note").get_property("textContent"))

    def verdict(self) -> tuple[str, str]:
        """Return the outcome of the newest comparison, and all that is said of it."""
        element = self.chrome.find_elements(By.CLASS_NAME, "verdict")[-1]
        return str(element.get_attribute("class")).removeprefix("verdict "), element.text

    @contextmanager
    def screen(self, width: int, height: int, *, scale: float = 1, mobile: bool = False) -> Iterator[None]:
        """Let the window have this size for as long as the block runs."""
        self.emulate("setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.until(lambda: self.chrome.execute_script("return innerWidth") == width, "the window keeps its size")
        # The page hears of another width before it is drawn anew, not when it has it.
        self.chrome.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        try:
            yield
        finally:
            self.emulate("clearDeviceMetricsOverride")

    def complaints(self) -> list[str]:
        """Return the browser's log of errors, such as a violated Content-Security-Policy."""
        return [entry["message"] for entry in self.chrome.get_log("browser")]

    def emulate(self, what: str, **values: Any) -> None:
        """Let the browser pretend to have another screen, for example, until it is asked again."""
        self.chrome.execute_cdp_cmd(f"Emulation.{what}", values)

    def style(self, selector: str, name: str) -> str:
        """Return a computed style."""
        script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
        return str(self.chrome.execute_script(script, selector, name))
