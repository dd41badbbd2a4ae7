"""Command that takes the picture of the page for docs/serving.md: the real page over the bundled pair, after a prompt.

python -m tests.endpoint.page.picture docs/pictures/page.png
"""

import base64
import sys
from pathlib import Path

from selenium.webdriver.common.by import By

from jobs.config.serve import load_serve_config
from tests.endpoint.in_process import open_server
from tests.endpoint.page.browser import Page, chromium

WIDTH, HEIGHT = 1280, 700


def main() -> None:
    """Write the picture to the file that is named."""
    (path,) = sys.argv[1:]
    serve = load_serve_config(["--config=examples/configs/serve.yaml"], "picture").serve
    assert serve.service.model is not None
    with open_server(serve.service.model, serve.page_examples) as server, chromium() as chrome:
        page = Page(chrome, server.port)
        page.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        with page.screen(WIDTH, HEIGHT):
            for _ in range(2):  # the second time everything has been run before, so its times are ordinary ones
                page.find("new-chat").click()
                chrome.find_element(By.CSS_SELECTOR, "#examples button").click()
                page.until_ended()
            picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    Path(path).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
