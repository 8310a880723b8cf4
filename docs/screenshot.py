"""Takes the README's picture of the chat page, with answers of SmolLM2-135M-Instruct.

`make pictures` runs this script. It serves the chat model as `make chat` does, runs an example of
the page in Chromium, and writes docs/page.png, and the page's words in it as docs/page.txt.
Chromium must be installed; the environment variable CHROMIUM can set its path.
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
from tandem.tools.benchmark.load_generator import warm_up
from tandem.tools.models.named import find_model
from tandem.tools.profiles import deployment
from tandem.tools.triton import server as triton
from tandem.tools.triton.server import LOOPBACK

PICTURE = Path(__file__).with_name("page.png")
WORDS = PICTURE.with_suffix(".txt")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SIZE = {"width": 1080, "height": 940}  # fits the whole conversation
EXAMPLE = "Repeat with a change"
SECONDS_TO_ANSWER = 120


def main(model: str) -> None:
    """Serve a model, run the example once, and take the picture."""
    found = find_model(model)
    checkpoint = found.checkpoint()
    planned = deployment.for_checkpoints(checkpoint, None)
    with (
        triton.serving(planned) as server,
        listen(LOOPBACK, 0) as bound,
        serving(create_app(GatewaySettings(server.grpc_url, checkpoint, model=found.name)), bound),
        sync_playwright() as playwright,
    ):
        warm_up(server, planned)  # as `tandem up` does
        options = {"args": ["--no-sandbox"]} if os.geteuid() == 0 else {}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **options)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://{LOOPBACK}:{bound.getsockname()[1]}")
        page.wait_for_load_state("networkidle")
        run_example(page)
        page.screenshot(path=PICTURE)
        shown = page.locator("h1, h3, label, button, #legend li, #keys").locator("visible=true")
        lines = (" ".join(text.split()) for text in shown.all_inner_texts())
        WORDS.write_text("\n".join(dict.fromkeys(lines)) + "\n")
        browser.close()


def run_example(page: Page) -> None:
    """Run the example and wait for both answers."""
    page.locator("#example-list button").filter(has=page.get_by_text(EXAMPLE)).click()
    page.locator(".ratio").wait_for(timeout=SECONDS_TO_ANSWER * 1000)
    page.locator("#send").wait_for()
    page.locator(".text .accepted").first.hover()  # explains its round


if __name__ == "__main__":
    main(sys.argv[1])
