"""The web page works in a real browser, with a scripted Triton."""

import pytest
from browser import browser as chromium
from browser import expect, needs_browser
from live_triton import eventually
from scripted_triton import FOREVER, origins, statistics

from tandem.gateway.errors import ApiError
from tandem.gateway.server import listen, serving
from tandem.gateway.triton.backend import ResponseChunk

pytestmark = needs_browser

# "def main():" and "#" in the demo's vocabulary, generated in three rounds
IDS = {"def": 325, " ma": 594, "in": 260, "():": 1002, "\n": 199, "#": 3}
ORIGINS = [
    origins((1, "accepted", 3), (1, "accepted", 3), (1, "correction", 2)),
    origins((2, "accepted", 3), (2, "bonus", 1)),
    origins((3, "plain", 1)),
]
FIRST = ResponseChunk("def main", [325, 594, 260], 1, 4, 2, extras=ORIGINS[0])
SECOND = ResponseChunk("():\n", [1002, 199], 2, 5, 3, extras=ORIGINS[1])
LAST = ResponseChunk("#", [3], 3, 5, 3, "length", statistics(2, 1), ORIGINS[2])


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def url(app, triton):
    triton.script = lambda _: [FIRST, SECOND, LAST]
    with listen("127.0.0.1", 0) as bound, serving(app(), bound):
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"


@pytest.fixture(scope="module")
def tab(browser):
    """A browser tab, the errors on its page, and the hosts that it calls."""
    opened = browser.new_context().new_page()
    wrong, hosts = [], set()
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console", lambda message: wrong.append(message.text) if message.type == "error" else None
    )
    opened.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3]) + "/"))
    return opened, wrong, hosts


@pytest.fixture
def page(tab, url):
    opened, wrong, hosts = tab
    opened.goto("about:blank")
    wrong.clear()
    hosts.clear()
    opened.goto(url)
    expect(opened.locator("#server")).to_have_text("Context length: 100 tokens")
    yield opened
    assert [what for what in wrong if "a status of 4" not in what] == []
    assert hosts == {url}


def send(page, text="say it", mode="Chat"):
    page.get_by_label(mode).check()
    page.locator("#prompt").fill(text)
    page.get_by_role("button", name="Send").click()


def test_the_page_streams_an_answer_and_colors_tokens_by_kind(page):
    send(page)
    text = page.locator(".text")
    expect(text).to_have_text("def main():\n#", use_inner_text=True)
    kinds = text.locator("span").evaluate_all(
        "spans => spans.map(s => [s.textContent, s.dataset.kind, s.dataset.round])"
    )
    assert kinds == [
        ["def", "accepted", "1"],
        [" ma", "accepted", "1"],
        ["in", "correction", "1"],
        ["():", "accepted", "2"],
        ["\n", "bonus", "2"],
        ["#", "plain", "3"],
    ]
    colors = text.locator("span").evaluate_all(
        "spans => spans.map(s => getComputedStyle(s).backgroundColor)"
    )
    assert len({colors[0], colors[2], colors[4], colors[5]}) == 4
    figures = page.locator("dd").all_inner_texts()
    assert figures[1:3] == ["60%", "2.00"]
    expect(page.locator("#note")).to_contain_text("6 tokens in")


def test_the_page_shows_rounds_on_hover_and_by_arrow_keys(page):
    send(page)
    expect(page.locator(".text span")).to_have_count(6)
    page.get_by_text(" ma", exact=True).hover()
    expect(page.locator("#round")).to_have_text("Round 1: 2 accepted, 1 correction")
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#round")).to_have_text("Round 2: 1 accepted, 1 bonus")
    assert page.locator(".token.shown").all_inner_texts()[0] == "():"


def test_a_chat_continues_until_the_user_starts_a_new_one(page, triton):
    send(page, "one")
    expect(page.locator("#note")).to_contain_text("6 tokens")
    first = len(triton.asked[0]["input_ids"])
    send(page, "one")
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator("#note")).to_contain_text("6 tokens")
    assert len(triton.asked[1]["input_ids"]) > 2 * first
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".panel")).to_have_count(0)
    send(page, "one")
    expect(page.locator("#note")).to_contain_text("6 tokens")
    assert len(triton.asked[2]["input_ids"]) == first


def test_the_stop_button_cancels_the_request(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page)
    expect(page.locator(".text span")).to_have_count(3)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#note")).to_have_text("Stopped.")
    assert eventually(lambda: triton.left == 1)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_the_page_shows_errors(page, triton):
    triton.script = lambda _: [ApiError(429, "too much to do")]
    send(page)
    expect(page.locator("#note")).to_have_text("too much to do")
    triton.script = lambda _: [FIRST, ApiError(500, "the target has died")]
    send(page)
    expect(page.locator("#note")).to_have_text("the target has died")


def test_the_page_compares_an_answer_with_the_baseline(page, triton):
    triton.script = lambda asked: (
        [FIRST, SECOND, LAST]
        if "drafter" not in asked
        else [
            ResponseChunk("def", [325], 1, 0, 0, extras=origins((1, "plain", 3))),
            ResponseChunk(
                " mad",
                [594, 69],
                3,
                *(0, 0, "length", statistics(0, drafted=0)),
                origins((2, "plain", 3), (3, "plain", 1)),
            ),
        ]
    )
    page.get_by_label("Compare with the baseline").check()
    send(page)
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator(".verdict")).to_contain_text(
        "The answers differ from character 7. Speedup with drafts: "
    )
    drafted, baseline = triton.asked
    assert baseline["drafter"] == "none"
    assert drafted["seed"] == baseline["seed"]


def test_controls_on_the_page_set_fields_of_the_request(page, triton):
    page.get_by_text("Drafts and sampling").click()
    page.get_by_label("Drafter").select_option("hybrid")
    page.get_by_label("Draft tokens per round").fill("auto")
    page.get_by_label("Maximum tokens").fill("7")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top-p").fill("0.9")
    page.get_by_label("Top-k").fill("3")
    page.get_by_label("Seed").fill("11")
    page.get_by_label("JSON schema").fill(' {"type": "object"}\n')
    send(page, mode="Completion")
    expect(page.locator("#note")).to_contain_text("6 tokens")
    sent = triton.asked[0]
    assert (sent["drafter"], sent["num_draft_tokens"], sent["max_tokens"]) == ("hybrid", -1, 7)
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"]) == (0.5, 0.9, 3, 11)
    assert sent["guided_decoding_guide_type"] == "json_schema"
    assert sent["guided_decoding_guide"] == '{"type": "object"}'


def test_the_page_marks_forced_tokens(page, triton):
    got = origins((0, "forced", 3), (1, "correction", 2), (1, "forced", 1))
    triton.script = lambda _: [
        ResponseChunk("defin#", [325, 260, 3], 1, 0, 0, "stop", statistics(0), got)
    ]
    send(page)
    expect(page.locator(".text .forced")).to_have_count(2)
    colors = page.locator(".text span").evaluate_all(
        "spans => spans.map(s => getComputedStyle(s).backgroundColor)"
    )
    assert colors[0] == colors[2] != colors[1]
    page.get_by_text("def", exact=True).hover()
    expect(page.locator("#round")).to_have_text("Before the first round: 1 forced by the schema")
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#round")).to_have_text("Round 1: 1 correction, 1 forced by the schema")
    assert page.locator(".token.shown").all_inner_texts() == ["in", "#"]


def test_the_page_reports_an_invalid_schema_and_warnings(page, triton):
    warned = statistics(2, 1) | {"guide": {"warnings": ["items may repeat"]}}
    triton.script = lambda _: [FIRST, SECOND, LAST._replace(statistics=warned)]
    page.get_by_text("Drafts and sampling").click()
    page.get_by_label("JSON schema").fill("{")
    send(page)
    expect(page.locator("#note")).to_contain_text("The JSON schema is not valid JSON: ")
    assert not triton.asked
    page.get_by_label("JSON schema").fill("[]")
    send(page)
    expect(page.locator("#note")).to_contain_text("response_format.json_schema.schema must be")
    page.get_by_label("JSON schema").fill("")
    send(page)
    expect(page.locator("#note")).to_contain_text("6 tokens")
    assert "guided_decoding_guide" not in triton.asked[-1]
    expect(page.get_by_text("Warning: items may repeat")).to_be_visible()


def test_the_page_fits_a_phone_in_light_and_dark_mode(browser, url, triton):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    page.goto(url)
    send(page, "W" * 36)
    expect(page.locator(".text span")).to_have_count(6)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for kind in ("accepted", "correction", "bonus"):
            assert contrast(page.locator(f".text .{kind}").first) >= 4.5
        assert contrast(page.locator("#legend .forced")) >= 4.5
    context.close()


def contrast(locator):
    """Return the contrast ratio between text and background, as defined by WCAG."""
    colors = locator.evaluate(
        "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    )
    light, dark = sorted(map(luminance, colors), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color):
    parts = [int(part) / 255 for part in color[len("rgb(") : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_lists_the_drafters_and_every_control_has_a_label(page):
    names = page.locator("#drafter option").all_text_contents()
    assert names == ["default", "prompt_lookup", "hybrid", "repeat", "none"]
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button")]
            .filter((e) => !(e.labels?.length || e.textContent.trim()))
            .map((e) => e.id)"""
    )
    assert unnamed == []
    assert page.locator("html").get_attribute("lang") == "en"
