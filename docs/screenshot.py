"""Takes the README's screenshot of the web page, with an answer of SmolLM2-135M-Instruct.

`make screenshot` runs this script. It serves the chat model as `make chat` does, sends a prompt in
Chromium, and writes docs/page.png. Chromium must be installed; the environment variable CHROMIUM
can set its path.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tandem.gateway.app import create_app
from tandem.gateway.server import listen, serving
from tandem.gateway.settings import GatewaySettings
from tandem.tools.models.named import find_model
from tandem.tools.profiles import deployment
from tandem.tools.triton import serving as triton
from tandem.tools.triton.server import LOOPBACK

PICTURE = Path(__file__).with_name("page.png")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SIZE = {"width": 860, "height": 640}
PROMPT = (
    "Correct the spelling of this text:\n\n"
    "The city has opend a new library by the river. It has two floors, a reading room and a "
    "garden. The reading room is open every day from nine to six, the garden until the sun sets."
)
SECONDS_TO_ANSWER = 120


def main(model: str) -> None:
    """Serve a model, send the prompt and take the screenshot."""
    checkpoint = find_model(model).checkpoint()
    with (
        triton.serving(deployment.for_checkpoints(checkpoint, None)) as server,
        listen(LOOPBACK, 0) as bound,
        serving(create_app(GatewaySettings(server.grpc_url, checkpoint)), bound),
        sync_playwright() as playwright,
    ):
        options = {"args": ["--no-sandbox"]} if os.geteuid() == 0 else {}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **options)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://{LOOPBACK}:{bound.getsockname()[1]}")
        ask(page)
        page.screenshot(path=PICTURE, full_page=True)
        browser.close()


def ask(page: Page) -> None:
    """Send the prompt and wait for the complete answer."""
    page.locator("#prompt").fill(PROMPT)
    page.get_by_role("button", name="Send").click()
    stop = page.locator("#stop")
    stop.and_(page.locator(":enabled")).wait_for()
    stop.and_(page.locator(":disabled")).wait_for(timeout=SECONDS_TO_ANSWER * 1000)


if __name__ == "__main__":
    main(sys.argv[1])
