"""The installed Chromium, controlled by Playwright, for tests of the web page."""

import os
import shutil
from contextlib import contextmanager

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="no Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = [
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: install one, or set CHROMIUM"),
    # Playwright closes its event loop only when the process ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
expect = sync_api.expect
expect.set_options(timeout=60_000)  # milliseconds; the default is too short for a busy machine


@contextmanager
def browser():
    """Yield a headless Chromium. If the user is root, it runs without a sandbox."""
    with sync_api.sync_playwright() as playwright:
        options = {"args": ["--no-sandbox"]} if os.geteuid() == 0 else {}
        opened = playwright.chromium.launch(executable_path=CHROMIUM, **options)
        yield opened
        opened.close()
