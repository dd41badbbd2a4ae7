"""Command that takes the picture of the page for docs/serving.md: the real page over the bundled pair, after a text.

python -m tests.endpoint.page.picture docs/pictures/page.png
"""

import base64
import sys
from pathlib import Path

from tests.endpoint.in_process import bundled_server
from tests.endpoint.page.browser import Page, chromium
from tests.endpoint.toy_app import KEY

MODEL, WIDTH, HEIGHT = "dray/tiny-pair", 1200, 540
PROMPT = "Write a short story about a raven and a lighthouse."
NUM_TOKENS = 320


def main() -> None:
    """Write the picture to the file that is named."""
    (path,) = sys.argv[1:]
    with bundled_server(MODEL) as server, chromium() as chrome:
        page = Page(chrome, server.port)
        page.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        page.emulate("setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        page.send(key=KEY, prompt=PROMPT, kind="a message", max_tokens=NUM_TOKENS)
        page.until_ended()
        picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    Path(path).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
