"""The page of a run in a real browser, opened as a file: on a desktop and a phone, in the light and in the dark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys as Press

from jobs.report_page.page import write_page
from pipeline.run.directory import RunDirectory
from tests.endpoint.page.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]  # it needs Chromium, and one at a time
DESKTOP, PHONE = (1440, 900), (390, 844)
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def path(hostile_run: RunDirectory) -> Path:
    return Path(write_page(hostile_run))


def _open(chrome: Chrome, path: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    chrome.get(f"file://{path}")


def test_the_page_asks_for_nothing_and_complains_of_nothing(chrome, path):
    _open(chrome, path)
    assert chrome.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert chrome.get_log("browser") == []
    assert chrome.title == "out: report", "no text of a run has changed it"
    assert chrome.find_element(By.TAG_NAME, "body").is_displayed()
    assert chrome.execute_script("return document.querySelectorAll('.sample').length") == 22


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_cut_off_or_wider_than_the_screen(chrome, path, size):
    _open(chrome, path, size)
    chrome.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= size[0]
    smallest = chrome.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg text')].map((text) => "
        "parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"
    )
    assert smallest >= 9.5, "the letters of a chart can be read"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_what_is_behind_them(chrome, path, scheme):
    _open(chrome, path, scheme=scheme)
    paper = _colour(chrome, "body", "background-color")
    assert (sum(paper) > 382) == (scheme == "light")
    panel = _colour(chrome, ".sample", "background-color")
    behind = {".accepted": _colour(chrome, ".text .accepted", "background-color"), ".rejected": panel, ".own": panel}
    for selector, background in {**behind, ".corrected": panel, ".facts": panel}.items():
        assert _contrast(_colour(chrome, f".sample {selector}", "color"), background) >= LEAST_CONTRAST, selector
    assert _contrast(_colour(chrome, ".where", "color"), paper) >= LEAST_CONTRAST
    assert _contrast(_colour(chrome, "figure svg text", "fill"), panel) >= LEAST_CONTRAST
    bars = _colour(chrome, "#drafts-patch_3 path", "fill")
    assert _contrast(bars, panel) >= 3, "WCAG 2.2, 1.4.11"


def test_marks_differ_by_shape_too(chrome, path):
    _open(chrome, path)
    shapes = {
        selector: tuple(
            _style(chrome, f".legend {selector}", name)
            for name in ("text-decoration-line", "border-bottom-style", "border-top-style", "font-weight")
        )
        for selector in (".accepted", ".rejected", ".corrected", ".own")
    }
    assert len(set(shapes.values())) == 4, shapes


def test_the_keyboard_opens_samples_and_picks_kinds(chrome, path):
    _open(chrome, path)
    rejected = chrome.find_element(By.CSS_SELECTOR, ".sample .text .rejected")
    chrome.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert rejected.is_displayed()
    box = chrome.find_element(By.ID, "rejected-shown")
    box.send_keys(Press.SPACE)
    assert not rejected.is_displayed()
    shown = "return [...document.querySelectorAll('.sample')].filter((each) => each.checkVisibility()).length"
    chrome.find_element(By.ID, "kind-0").send_keys(Press.ARROW_RIGHT)
    assert 0 < chrome.execute_script(shown) < 20
    chrome.find_element(By.ID, "kind-1").send_keys(Press.ARROW_LEFT)
    assert chrome.execute_script(shown) == 22
    summary = chrome.find_element(By.CSS_SELECTOR, ".sample summary")
    is_open = "return document.querySelector('.sample').open"
    before = chrome.execute_script(is_open)
    summary.send_keys(Press.ENTER)
    assert chrome.execute_script(is_open) != before
    ActionChains(chrome).send_keys(Press.TAB).perform()
    assert chrome.switch_to.active_element != summary, "the keyboard goes on from there"


def test_every_drawing_says_in_words_what_it_shows(chrome, path):
    _open(chrome, path)
    drawings = chrome.find_elements(By.TAG_NAME, "svg")
    assert len(drawings) == 6
    assert all(re.search(r"\d", drawing.accessible_name) and drawing.aria_role == "image" for drawing in drawings)


def _style(chrome: Chrome, selector: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
    return str(chrome.execute_script(script, selector, name))


def _colour(chrome: Chrome, selector: str, name: str) -> tuple[int, int, int]:
    red, green, blue = re.findall(r"\d+", _style(chrome, selector, name))[:3]
    return int(red), int(green), int(blue)


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
