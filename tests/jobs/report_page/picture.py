"""Command that takes a picture of a run's page: its head, and a sample with what was accepted and rejected.

python -m tests.jobs.report_page.picture out/demo docs/pictures/report.png
"""

import base64
import sys
from pathlib import Path

from selenium.webdriver.common.by import By

from jobs.report_page.page import write_page
from pipeline.run.directory import RunDirectory
from tests.endpoint.page.browser import chromium

WIDTH, HEIGHT = 1200, 960
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


def main() -> None:
    """Write the picture of the run's page to the file that is named."""
    run, path = sys.argv[1:]
    page = write_page(RunDirectory.open(run))
    with chromium() as chrome:
        features = [{"name": "prefers-color-scheme", "value": "light"}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        chrome.get(f"file://{page}")
        chrome.execute_script(_LEAVE_OUT)
        assert chrome.find_element(By.CSS_SELECTOR, ".text .rejected").is_displayed()
        picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    Path(path).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
