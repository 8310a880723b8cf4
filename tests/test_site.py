"""The site of the docs works without a network. The extra `docs` must be installed."""

import functools
import http.server
import os
import subprocess
import sys
import threading

import pytest
from browser import browser, expect, needs_browser
from paths import ROOT

pytest.importorskip("material", reason="no mkdocs-material: pip install -e '.[docs]'")
pytestmark = needs_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"REPOSITORY_URL": "https://code.example/tandem"}
    subprocess.run(build, cwd=ROOT, env=environment, check=True, capture_output=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_diagrams_are_drawn_without_other_hosts_and_pages_can_be_edited(site):
    with browser() as opened:
        page, hosts = opened.new_page(), set()
        page.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3])))
        page.goto(f"{site}/concepts/round/")
        # The theme draws into a closed shadow root, after it has removed the source.
        expect(page.locator("div.mermaid")).to_be_visible()
        expect(page.locator("pre.mermaid")).to_have_count(0)
        edit = page.locator("a[href*='/edit/main/']")
        assert edit.get_attribute("href").endswith("docs/concepts/round.md")
        assert {host for host in hosts if "api.github" not in host} == {site}
