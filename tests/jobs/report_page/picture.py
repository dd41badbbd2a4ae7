"""Command that takes a picture of a run's page, or of the page of `dray diff --html`: its head, and a sample.

python -m tests.jobs.report_page.picture out/demo docs/pictures/report.png
python -m tests.jobs.report_page.picture out/pictures/diff/changes.html docs/pictures/diff.png
"""

import base64
import sys
from pathlib import Path

from selenium.webdriver.common.by import By

from jobs.report_page.page import write_page
from pipeline.run.directory import RunDirectory
from tests.endpoint.page.browser import chromium

WIDTH, HEIGHTS = 1200, {"a run": 960, "a diff": 760}
# What lies between the charts and the samples is left out, so that both are in one picture, and so are speeds, which
# say something only beside the processor that they were measured on.
_LEAVE_OUT = """
const others = '.said, .controls, .prompt, h2, h4, .more, footer, [aria-labelledby=rows], [aria-labelledby=errors]';
const figures = [...document.querySelectorAll('figure')], tiles = [...document.querySelectorAll('.tile')];
for (const each of document.querySelectorAll(others)) each.remove();
for (const each of [figures[0], ...figures.slice(4), tiles[2], ...tiles.slice(5)]) each.remove();
document.querySelector('.figures').style.marginTop = '1.2rem';
document.querySelector('.samples').style.marginTop = '1.6rem';
document.documentElement.style.overflow = 'hidden';
for (const each of [...document.querySelectorAll('details')].slice(1, 3)) each.open = true;
"""
# The folders of the runs are those of a scratch folder; the second sample shows a text that changed in its middle.
_SHORT_NAMES = """
const title = document.querySelector('h1');
title.textContent = title.textContent.split(' and ').map(path => path.split('/').pop()).join(' and ');
document.documentElement.style.overflow = 'hidden';
[...document.querySelectorAll('details')].slice(0, 2).forEach((each, number) => { each.open = number === 1; });
"""


def main() -> None:
    """Write the picture of the page to the file that is named."""
    run, path = sys.argv[1:]
    is_a_diff = run.endswith(".html")
    page = Path(run).absolute() if is_a_diff else write_page(RunDirectory.open(run))
    height = HEIGHTS["a diff" if is_a_diff else "a run"]
    with chromium() as chrome:
        features = [{"name": "prefers-color-scheme", "value": "light"}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        screen = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        chrome.get(f"file://{page}")
        chrome.execute_script(_SHORT_NAMES if is_a_diff else _LEAVE_OUT)
        marked = "details[open] .rejected"
        assert chrome.find_element(By.CSS_SELECTOR, marked).is_displayed()
        picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    Path(path).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
