"""The page of a live Triton, in a real browser."""

import pytest
from browser import browser, expect, needs_browser
from crowd import idle
from live_triton import eventually
from metrics import computed, computed_so_far

pytestmark = needs_browser


@pytest.fixture
def page(gateway_url):
    with browser() as launched:
        opened = launched.new_page(viewport={"width": 1000, "height": 700})
        opened.goto(gateway_url)
        opened.get_by_label("Completion").check()
        yield opened


def test_answers_with_drafts_are_those_of_the_baseline(page):
    page.get_by_label("Compare with the baseline").check()
    page.locator("#prompt").fill("def main():")
    page.get_by_role("button", name="Send").click()
    page.locator(".verdict").wait_for(timeout=60_000)
    expect(page.locator(".verdict")).to_contain_text("The answers are identical.")
    drafted, baseline = page.locator(".panel").all()
    assert drafted.locator(".accepted").count() > 10
    assert baseline.locator(".accepted, .correction, .bonus").count() == 0


def test_stop_button_stops_the_engines(page, server):
    before = computed(server)
    page.get_by_text("Drafts and sampling").click()
    page.get_by_label("Maximum tokens").fill("900")
    page.locator("#prompt").fill("x")
    page.get_by_role("button", name="Send").click()
    assert eventually(lambda: computed_so_far(server) > before)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#note")).to_have_text("Stopped.")
    assert eventually(lambda: idle(server))
    assert computed(server) - before < 450
