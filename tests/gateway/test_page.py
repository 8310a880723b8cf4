"""The web page works in a real browser, with a scripted Triton."""

import re
from contextlib import ExitStack, contextmanager

import pytest
from browser import browser as chromium
from browser import expect, needs_browser
from live_triton import eventually
from paths import ROOT, TEMPLATES
from scripted_triton import FOREVER, origins, statistics

from tandem.gateway.errors import ApiError
from tandem.gateway.server import listen, serving
from tandem.gateway.triton.backend import ResponseChunk

pytestmark = needs_browser

# "def main():" and "#" in the demo's vocabulary, generated in three rounds
ORIGINS = [
    origins((1, "accepted", 3), (1, "accepted", 3), (1, "correction", 2), rejected=69),
    origins((2, "accepted", 3), (2, "bonus", 1)),
    origins((3, "plain", 1)),
]
FIRST = ResponseChunk("def main", [325, 594, 260], 1, 4, 2, extras=ORIGINS[0])
SECOND = ResponseChunk("():\n", [1002, 199], 2, 5, 3, extras=ORIGINS[1])
LAST = ResponseChunk("#", [3], 3, 5, 3, "length", statistics(2, 1), ORIGINS[2])
PLAIN = [
    ResponseChunk("def", [325], 1, 0, 0, extras=origins((1, "plain", 3))),
    ResponseChunk(
        " mad",
        [594, 69],
        3,
        *(0, 0, "length", statistics(0, drafted=0)),
        origins((2, "plain", 3), (3, "plain", 1)),
    ),
]


def saying(text, kind="plain"):
    """Return a script whose answer is this text, in one token."""
    return [ResponseChunk(text, [5], 1, 4, 1, "stop", statistics(0), origins((1, kind, len(text))))]


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def serve(app, triton, monkeypatch):
    """A function that returns the address of a gateway with given settings."""
    monkeypatch.setattr(
        "tandem.gateway.models.ServedModels.max_model_len", property(lambda _: 1000)
    )
    triton.script = lambda _: [FIRST, SECOND, LAST]
    with ExitStack() as stack:

        def start(**settings):
            bound = stack.enter_context(listen("127.0.0.1", 0))
            stack.enter_context(serving(app(model="org/tiny", **settings), bound))
            return address_of(bound)

        yield start


@pytest.fixture
def url(serve):
    return serve()


def address_of(bound):
    return f"http://127.0.0.1:{bound.getsockname()[1]}/"


@pytest.fixture
def page_of(browser, serve):
    """A function that opens the page of a gateway with given settings in a fresh browser profile.

    No script fails, and no other host is called.
    """
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened_page(browser, serve(**settings)))


@pytest.fixture
def page(page_of):
    return page_of()


@contextmanager
def opened_page(browser, url):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    wrong, hosts = [], set()
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console", lambda message: wrong.append(message.text) if message.type == "error" else None
    )
    opened.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3]) + "/"))
    opened.goto(url)
    expect(opened.locator("#server")).to_have_text("org/tiny")
    yield opened
    assert [what for what in wrong if "a status of 4" not in what] == []
    assert hosts == {url}
    context.close()


def send(page, text="say it", *, done=True):
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")
    if done:
        finished(page)


def finished(page):
    expect(page.locator("#note")).to_contain_text("Complete: ")


def choose(page, **values):
    """Set controls in the settings, by id."""
    page.get_by_role("button", name="Settings").click()
    for name, value in values.items():
        control = page.locator(f"#{name.replace('_', '-')}")
        if control.evaluate("e => e.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)
    page.get_by_role("button", name="Close").click()


def asked(triton, number=-1):
    """Return the prompt of a request as text."""
    return detokenized(triton.asked[number]["input_ids"])


def detokenized(ids):
    from scripted_triton import detokenizer

    return detokenizer().decode_complete(ids)


# ---- Drafted tokens


def test_the_page_streams_an_answer_and_colors_tokens_by_kind(page):
    choose(page, mode="completion")
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
    facts = page.locator("dl").inner_text().replace("\n", " ")
    assert "drafted 50% of the answer" in facts
    assert "drafts accepted 60%" in facts
    assert "tokens per round 2.00" in facts
    page.get_by_label("Color drafted tokens").uncheck()
    colors = text.locator("span").evaluate_all(
        "spans => spans.map(s => getComputedStyle(s).backgroundColor)"
    )
    assert len(set(colors)) == 1


def test_the_legend_explains_the_kinds_that_occur(page):
    send(page)
    expect(page.locator("#legend li:visible .token")).to_have_text(
        ["drafted", "correction", "bonus", "plain"]
    )


def test_pointer_and_arrow_keys_explain_each_round(page):
    choose(page, mode="completion")
    send(page)
    page.get_by_text(" ma", exact=True).hover()
    expect(page.locator(".round")).to_contain_text(
        "Round 1: 3 tokens from one step of the model. 2 guesses were right. "
        'Then the draft said "e", but the model chose "in". The guess after it didn\'t fit, either.'
    )
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".round")).to_contain_text("Round 2: 2 tokens from one step")
    expect(page.locator(".round")).to_contain_text('The guess was right, and the model added "')
    assert page.locator(".text .shown").all_inner_texts()[0] == "():"


# Each look at the clock is a millisecond later. Otherwise, a scripted answer may take no time.
TICK = "let n = 0; performance.now = () => (n += 1)"


def test_the_page_compares_an_answer_with_the_baseline(page, triton):
    triton.script = lambda asked: PLAIN if "drafter" in asked else [FIRST, SECOND, LAST]
    page.get_by_label("Compare with and without drafts").check()
    page.evaluate(TICK)
    send(page)
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator(".verdict")).to_contain_text("The answers differ from character 7.")
    expect(page.locator(".ratio strong")).to_have_text(re.compile(r"^\d+\.\d\dx$"))
    size = "e => parseFloat(getComputedStyle(e).fontSize)"
    assert page.locator(".ratio strong").evaluate(size) > 2 * page.locator(".text").first.evaluate(
        size
    )
    drafted, baseline = triton.asked
    assert baseline["drafter"] == "none"
    assert drafted["seed"] == baseline["seed"]


def test_the_result_of_a_comparison_is_shown_even_if_the_answers_are_long(page, triton):
    long = saying("".join(f"{n}. item\n" for n in range(1, 100)))
    speedy = [long[0]._replace(finish_reason=None, statistics=None), *saying("\nend")]
    triton.script = lambda _: speedy
    page.get_by_label("Compare with and without drafts").check()
    page.evaluate(TICK)
    send(page)
    expect(page.locator(".ratio")).to_be_in_viewport()


def test_a_comparison_says_when_drafts_do_not_pay(page, triton):
    wrong = origins((1, "correction", 3), rejected=69), origins((2, "correction", 4), rejected=69)
    slow = [
        ResponseChunk("def", [325], 1, 9, 0, extras=wrong[0]),
        ResponseChunk(" mad", [594], 2, 18, 0, "stop", statistics(0, 0, drafted=9), wrong[1]),
    ]
    triton.script = lambda asked: PLAIN if "drafter" in asked else slow
    page.get_by_label("Compare with and without drafts").check()
    # The baseline is ten times as fast.
    page.evaluate(
        "let n = 0; performance.now = () => (n += document.querySelector("
        "'.panel:last-child .text:not(.waiting)')?.textContent ? 1 : 10)"
    )
    send(page)
    expect(page.locator(".verdict")).to_contain_text(
        "Drafts don't pay here: 0 of 2 tokens came from drafts, and 18 guesses were wrong."
    )


def test_examples_run_with_and_without_drafts_and_say_why(page, triton):
    examples = page.locator("#example-list button")
    expect(examples).to_have_count(4)
    assert len(examples.filter(has_text="Drafts don't pay here").all()) == 1
    examples.filter(has_text="Fill in a form").click()
    finished(page)
    assert [one.get("drafter") for one in triton.asked] == [None, "none"]
    assert triton.asked[0]["guided_decoding_guide_type"] == "json_schema"
    expect(page.locator("#examples")).to_be_hidden()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#extras")).to_be_hidden()  # the schema belongs to the example's chat


def test_the_page_marks_forced_tokens(page, triton):
    got = origins((0, "forced", 3), (1, "correction", 2), (1, "forced", 1))
    triton.script = lambda _: [
        ResponseChunk("defin#", [325, 260, 3], 1, 0, 0, "stop", statistics(0), got)
    ]
    send(page)
    expect(page.locator(".text .forced")).to_have_count(2)
    page.get_by_text("def", exact=True).hover()
    expect(page.locator(".round")).to_contain_text("Before the first round: 1 token")
    page.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".round")).to_contain_text("The schema allowed no other token for 1")


# ---- Nothing is lost


def test_enter_sends_shift_enter_breaks_and_escape_stops(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    page.locator("#prompt").fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(page.locator(".text")).to_have_text("def main")
    assert "one\ntwo" in asked(triton)
    page.keyboard.press("Escape")
    expect(page.locator("#note")).to_have_text("Stopped.")
    assert eventually(lambda: triton.left == 1)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_text_typed_during_an_answer_stays(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.locator("#prompt").fill("typed meanwhile")
    page.keyboard.press("Enter")  # not sent, and not lost
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#note")).to_have_text("Stopped.")
    expect(page.locator("#prompt")).to_have_value("typed meanwhile")
    page.reload()
    expect(page.locator("#prompt")).to_have_value("typed meanwhile")
    assert len(triton.asked) == 1


def test_a_sent_prompt_is_not_kept_as_a_draft(page):
    page.locator("#prompt").press_sequentially("sent")
    page.keyboard.press("Enter")
    finished(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#prompt")).to_have_value("")
    page.reload()
    expect(page.locator("#prompt")).to_have_value("")


def test_a_stopped_answer_is_kept_as_stopped_and_sent_as_context(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, "first", done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped. The text above is part of the chat.")).to_be_visible()
    triton.script = lambda _: [FIRST, SECOND, LAST]
    send(page, "second")
    assert "user: first\nassistant: def main\nuser: second" in asked(triton)


def test_a_chat_survives_a_reload_and_continues(page, triton):
    send(page, "first")
    page.reload()
    expect(page.locator(".text")).to_contain_text("def main():")
    expect(page.locator(".text .accepted").first).to_be_visible()
    send(page, "second")
    assert "user: first\nassistant: def main():\n#\nuser: second" in asked(triton)


def test_a_reload_during_an_answer_keeps_its_text(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.reload()
    expect(page.locator(".text")).to_have_text("def main")
    expect(page.get_by_text("Interrupted when the page closed.")).to_be_visible()


def test_the_page_shows_errors_and_leaves_failed_turns_out_of_the_context(page, triton):
    triton.script = lambda _: [ApiError(429, "too much to do")]
    send(page, "lost", done=False)
    expect(page.locator("#note")).to_have_text("too much to do")
    expect(page.get_by_text("lost", exact=True)).to_have_count(2)  # in the chat and the list
    triton.script = lambda _: [FIRST, ApiError(500, "the target has died")]
    send(page, "second", done=False)
    expect(page.locator("#note")).to_have_text("the target has died")
    assert "lost" not in asked(triton)
    triton.script = lambda _: [FIRST, SECOND, LAST]
    page.get_by_role("button", name="Regenerate").last.click()
    finished(page)
    expect(page.locator(".end.wrong")).to_have_count(1)


# A browser whose storage is turned off, or full except for some characters
NO_STORAGE = """
    for (const name of ["localStorage", "sessionStorage"]) {
        Object.defineProperty(window, name, {get() { throw new Error("turned off") }});
    }
"""
FILL = """left => {
    let text = "x".repeat(2 ** 22);
    for (; text.length > 1; text = text.slice(text.length / 2)) {
        try { localStorage.filler = (localStorage.filler ?? "") + text } catch {}
    }
    localStorage.filler = localStorage.filler.slice(left);
}"""


def test_two_tabs_that_answer_in_one_chat_keep_all_turns(page, triton):
    send(page, "first")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".text")).to_contain_text("def main():")
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, "one", done=False)
    expect(other.locator(".said")).to_have_text(["first", "one"])  # it follows the first tab
    expect(other.locator(".text").last).to_have_text("def main")
    triton.script = lambda _: [FIRST, SECOND, LAST]
    send(other, "two")
    page.keyboard.press("Escape")
    expect(page.locator("#note")).to_have_text("Stopped.")
    send(page, "three")
    page.reload()
    expect(page.locator(".said")).to_have_text(["first", "one", "three"])
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".said")).to_have_text(["first", "one", "two"])


def test_a_chat_that_another_tab_deletes_can_be_continued(page):
    send(page, "first")
    other = page.context.new_page()
    other.goto(page.url)
    other.once("dialog", lambda dialog: dialog.accept())
    other.get_by_role("button", name="Delete").click()
    expect(page.locator("#note")).to_contain_text("Another tab deleted this chat.")
    send(page, "second")
    page.reload()
    expect(page.locator(".said")).to_have_text(["first", "second"])


def test_text_typed_in_two_tabs_stays(page):
    other = page.context.new_page()
    other.goto(page.url)
    page.locator("#prompt").fill("in the first")
    other.locator("#prompt").fill("in the second")
    page.reload()
    expect(page.locator("#prompt")).to_have_value("in the first")
    other.reload()
    expect(other.locator("#prompt")).to_have_value("in the second")


def test_without_storage_chats_last_until_the_page_closes_and_it_says_so(browser, url):
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NO_STORAGE)
    page.goto(url)
    send(page, "first")
    expect(page.locator("#unsaved")).to_contain_text("this tab forgets new messages")
    page.get_by_role("button", name="New chat").click()
    send(page, "second")
    page.locator("#chat-list a").last.click()
    expect(page.locator(".said")).to_have_text("first")
    with page.expect_event("dialog") as dialog:
        page.close(run_before_unload=True)
    assert dialog.value.type == "beforeunload"
    dialog.value.accept()
    context.close()


def test_a_full_storage_loses_nothing_and_has_space_after_a_deletion(page):
    send(page, "about trains")
    page.evaluate(FILL, 100)
    page.get_by_role("button", name="New chat").click()
    send(page, "about boats")
    expect(page.locator("#unsaved")).to_be_visible()
    page.locator("#chat-list a").last.click()
    page.evaluate("delete localStorage.filler")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#unsaved")).to_be_hidden()
    page.reload()
    page.locator("#chat-list a").click()
    expect(page.locator(".said")).to_contain_text("about boats")
    expect(page.locator(".text")).to_contain_text("def main():")


def test_an_edited_prompt_survives_the_end_of_an_answer_escape_and_a_reload(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, "first", done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.get_by_role("button", name="Edit").click()
    page.keyboard.type(", changed")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#note")).to_have_text("Stopped.")
    expect(page.get_by_label("Edited prompt")).to_have_value("first, changed")
    page.get_by_label("Edited prompt").press("Escape")
    page.reload()
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edited prompt")).to_have_value("first, changed")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edited prompt")).to_have_value("first")


def test_a_deleted_chat_leaves_nothing_in_the_browser(page):
    send(page, "secret 1")
    page.get_by_role("button", name="Edit").click()
    page.keyboard.type("secret 2")
    page.locator("#prompt").fill("secret 3")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#chat-list a")).to_have_count(0)
    page.reload()
    assert "secret" not in page.evaluate("JSON.stringify([localStorage, sessionStorage])")


def test_focus_and_selection_stay_when_an_answer_ends(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, done=False)
    page.get_by_text(" ma", exact=True).dblclick()
    page.get_by_role("button", name="Copy prompt").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#note")).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Copy prompt")).to_be_focused()
    assert "ma" in page.evaluate("getSelection().toString()")


def test_the_keyboard_focus_is_not_lost_when_turns_change(page):
    send(page, "number")
    page.get_by_role("button", name="Regenerate").press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    finished(page)
    page.get_by_role("button", name="Regenerate").press("Enter")
    expect(page.locator(".versions")).to_contain_text("3/3")
    finished(page)
    previous = page.get_by_role("button", name="Previous version")
    previous.press("Enter")
    expect(page.locator(".versions")).to_contain_text("2/3")
    expect(previous).to_be_focused()


def test_enter_that_confirms_a_composed_word_does_not_send(page, triton):
    keyboard = page.context.new_cdp_session(page)
    keyboard.send("Input.imeSetComposition", {"text": "に", "selectionStart": 1, "selectionEnd": 1})
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    keyboard.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    keyboard.send("Input.insertText", {"text": "日本"})
    expect(page.locator("#prompt")).to_have_value("日本")
    assert not triton.asked
    page.keyboard.press("Enter")
    finished(page)
    assert len(triton.asked) == 1


def test_a_very_long_prompt_is_sent_whole(page, triton, monkeypatch):
    long = property(lambda _: 10**6)
    monkeypatch.setattr("tandem.gateway.models.ServedModels.max_model_len", long)
    page.locator("#prompt").fill("word " * 40_000 + "end")
    page.locator("#prompt").press("Enter")
    finished(page)
    assert asked(triton).count("word ") == 40_000
    page.reload()
    expect(page.locator(".said")).to_have_text(re.compile("end$"))


def test_the_page_counts_the_seconds_until_the_first_token(page, triton):
    triton.script = lambda _: [FOREVER]
    send(page, done=False)
    expect(page.get_by_text("waiting for the first token")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("waiting for the first token")).to_have_count(0)


def test_a_chat_that_is_too_long_says_what_to_do(page):
    send(page, "word " * 2000, done=False)
    expect(page.locator("#note")).to_contain_text("Start a new one, or edit an earlier prompt.")
    expect(page.locator("#send")).to_be_visible()


def test_the_page_finds_a_server_that_comes_back(browser, app, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    context = browser.new_context()
    page = context.new_page()
    with listen("127.0.0.1", 0) as bound, serving(app(model="org/tiny"), bound):
        port = bound.getsockname()[1]
        page.goto(address_of(bound))
        send(page, done=False)
        expect(page.locator(".text")).to_have_text("def main")
        triton.stop()
    expect(page.locator("#send")).to_be_visible()  # the answer has ended, perhaps before the server
    expect(page.locator(".text")).to_have_text("def main")
    expect(page.locator("#server")).to_contain_text("doesn't respond. Trying again")
    page.locator("#prompt").fill("typed meanwhile")
    page.keyboard.press("Enter")
    expect(page.locator("#note")).to_have_text("The server doesn't respond. Regenerate asks again.")
    expect(page.locator(".said")).to_have_text(["say it", "typed meanwhile"])
    triton.start_again()
    triton.script = lambda _: [FIRST, SECOND, LAST]
    with listen("127.0.0.1", port) as bound, serving(app(model="org/other"), bound):
        expect(page.locator("#server")).to_have_text("org/other")
        expect(page.locator("#note")).to_have_text("")
        page.get_by_role("button", name="Regenerate").last.click()
        finished(page)
    context.close()


def test_the_page_asks_for_the_api_key(browser, app, triton):
    triton.script = lambda _: [FIRST, SECOND, LAST]
    context = browser.new_context()
    page = context.new_page()
    with listen("127.0.0.1", 0) as bound, serving(app(model="org/tiny", api_keys=("yes",)), bound):
        page.goto(address_of(bound))
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("no")
        page.keyboard.press("Enter")
        expect(page.locator("#key-wrong")).to_be_visible()
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("yes")
        page.keyboard.press("Enter")
        expect(page.locator("#server")).to_have_text("org/tiny")
        send(page)
        page.reload()
        expect(page.locator("#server")).to_have_text("org/tiny")
        port = bound.getsockname()[1]
    triton.start_again()
    keys = ("other",)
    with listen("127.0.0.1", port) as bound, serving(app(model="org/tiny", api_keys=keys), bound):
        send(page, "typed", done=False)
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.press("Control+A")
        page.keyboard.type("other")
        page.keyboard.press("Enter")
        expect(page.locator("#key-wrong")).to_be_hidden()
        expect(page.locator("#note")).to_have_text("")
        page.get_by_role("button", name="Regenerate").last.click()
        finished(page)
        expect(page.locator(".said").last).to_have_text("typed")
    context.close()


# ---- Chats


def test_chats_have_titles_and_can_be_renamed_exported_and_deleted(page):
    send(page, "about trains")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".panel")).to_have_count(0)
    send(page, "about boats")
    titles = page.locator("#chat-list a")
    expect(titles).to_have_text(["about boats", "about trains"])
    page.once("dialog", lambda dialog: dialog.accept("ships"))
    page.get_by_role("button", name="Rename").click()
    expect(titles).to_have_text(["ships", "about trains"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "ships.md"
    assert "about boats" in download.value.path().read_text()
    titles.last.click()
    expect(page.locator(".said")).to_have_text("about trains")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(titles).to_have_text(["ships"])
    page.reload()
    expect(titles).to_have_text(["ships"])


def test_the_back_button_returns_to_the_chat_before(page):
    send(page, "about trains")
    page.get_by_role("button", name="New chat").click()
    send(page, "about boats")
    page.locator("#chat-list a").last.click()
    expect(page.locator(".said")).to_have_text("about trains")
    page.go_back()
    expect(page.locator(".said")).to_have_text("about boats")
    page.go_back()
    expect(page.locator(".said")).to_have_text("about trains")


def test_an_answer_continues_while_another_chat_is_open(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, "slow", done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#note")).to_have_text("")
    page.locator("#chat-list a").click()
    expect(page.locator(".text")).to_have_text("def main")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped. The text above")).to_be_visible()


def test_chats_are_answered_at_the_same_time(page, triton):
    triton.script = lambda _: [FIRST, FOREVER]
    send(page, "slow", done=False)
    expect(page.locator(".text")).to_have_text("def main")
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_text("answering…")).to_be_visible()
    triton.script = lambda _: [FIRST, SECOND, LAST]
    send(page, "quick")
    page.keyboard.press("Escape")  # stops only the shown chat
    assert triton.left == 0
    page.locator("#chat-list a").last.click()
    expect(page.locator(".said")).to_have_text("slow")
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped. The text above")).to_be_visible()
    expect(page.get_by_text("answering…")).to_have_count(0)


def test_regenerated_and_edited_turns_are_versions_that_stay(page, triton):
    triton.script = lambda _: saying("one")
    send(page, "number")
    triton.script = lambda _: saying("two")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".text")).to_have_text("two")
    finished(page)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited prompt").fill("other number")
    triton.script = lambda _: saying("three")
    page.keyboard.press("Enter")
    expect(page.locator(".text")).to_have_text("three")
    finished(page)
    assert "user: other number\n" in asked(triton)
    expect(page.locator(".versions")).to_contain_text("3/3")
    page.get_by_role("button", name="Previous version").click()
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".text")).to_have_text("one")
    expect(page.locator(".said")).to_have_text("number")


def test_prompts_answers_and_code_can_be_copied(page, triton):
    triton.script = lambda _: saying("Run:\n\n```sh\nls\n```")
    send(page, "the prompt")
    copied = "navigator.clipboard.readText()"
    for name, text in (
        ("Copy code", "ls"),
        ("Copy answer", "Run:\n\n```sh\nls\n```"),
        ("Copy prompt", "the prompt"),
    ):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name="Copied").first).to_be_visible()
        assert page.evaluate(copied) == text


def test_text_can_be_copied_from_a_page_without_https(page):
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    send(page, "the prompt")
    page.get_by_role("button", name="Copy prompt").click()
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    page.locator("#prompt").press("Control+V")
    expect(page.locator("#prompt")).to_have_value("the prompt")


def test_controls_on_the_page_set_fields_of_the_request(page, triton):
    choose(
        page,
        **{"system": "Be brief.", "mode": "chat", "drafter": "hybrid", "draft-length": "auto"},
        **{"max-tokens": "7", "temperature": "0.5", "top-p": "0.9", "top-k": "3", "seed": "11"},
        schema=' {"type": "object"}\n',
    )
    page.reload()
    expect(page.locator("#server")).to_have_text("org/tiny")
    send(page)
    sent = triton.asked[0]
    assert asked(triton).startswith("system: Be brief.\nuser: say it\n")
    assert (sent["drafter"], sent["num_draft_tokens"], sent["max_tokens"]) == ("hybrid", -1, 7)
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"]) == (0.5, 0.9, 3, 11)
    assert sent["guided_decoding_guide_type"] == "json_schema"
    assert sent["guided_decoding_guide"] == '{"type": "object"}'
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#extras")).to_have_text("With system prompt")


def test_the_page_shows_the_model_and_the_used_context(page):
    expect(page.locator("#context")).to_have_text("Context: 1,000 tokens")
    send(page)
    expect(page.locator("#context")).to_have_text(re.compile(r"^Context: \d+ of 1,000 tokens$"))
    expect(page).to_have_title("org/tiny · Tandem")
    assert page.get_by_text("bls_stream").count() == 0


def test_an_answer_that_fills_the_context_says_what_to_do(page):
    send(page)
    expect(page.get_by_text("the model's context is full. Start a new chat")).to_be_visible()
    choose(page, max_tokens="6")
    send(page)
    expect(page.locator(".end").last).to_have_text("Ended at the maximum number of tokens.")


def test_the_choice_to_compare_survives_a_reload(page):
    page.get_by_label("Compare with and without drafts").check()
    page.reload()
    expect(page.get_by_label("Compare with and without drafts")).to_be_checked()


def test_the_page_reports_an_invalid_schema_and_warnings(page, triton):
    warned = statistics(2, 1) | {"guide": {"warnings": ["items may repeat"]}}
    triton.script = lambda _: [FIRST, SECOND, LAST._replace(statistics=warned)]
    choose(page, schema="{")
    send(page, done=False)
    expect(page.locator("#note")).to_contain_text("The JSON schema is not valid JSON: ")
    assert not triton.asked
    choose(page, schema="[]")
    send(page, done=False)
    expect(page.locator("#note")).to_contain_text("response_format.json_schema.schema must be")
    choose(page, schema="")
    send(page)
    assert "guided_decoding_guide" not in triton.asked[-1]
    expect(page.get_by_text("Warning: items may repeat")).to_be_visible()


# ---- Markdown

MARKDOWN = """# Title

Some **bold** text, `code` and a [link](https://example.com/a_b).

1. one
2. two

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x):
    return "<b>"
```
"""


def test_answers_are_shown_as_markdown_with_colored_tokens(page, triton):
    pieces = [MARKDOWN[i : i + 4] for i in range(0, len(MARKDOWN), 4)]
    kinds = ["accepted", "correction"]
    triton.script = lambda _: [
        ResponseChunk(
            piece, [5], i + 1, 4, 1, "stop" if i == len(pieces) - 1 else None,
            statistics(0) if i == len(pieces) - 1 else None,
            origins((i + 1, kinds[i % 2], len(piece))),
        )
        for i, piece in enumerate(pieces)
    ]  # fmt: skip
    send(page)
    text = page.locator(".text")
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("li")).to_have_text(["one", "two"])
    expect(text.locator("td")).to_have_text(["1", "2"])
    expect(text.locator("pre")).to_have_text('def f(x):\n    return "<b>"')
    expect(text.locator("pre .hljs-keyword").first).to_have_text("def")
    assert text.locator("a").get_attribute("href") == "https://example.com/a_b"
    # Each shown character has the round of the token that wrote it.
    wrong = text.locator(".token").evaluate_all(
        "(spans, pieces) => spans.filter(s => ![...s.textContent].every("
        "c => pieces[s.dataset.round - 1].includes(c))).map(s => s.textContent)",
        pieces,
    )
    assert wrong == []
    assert text.locator(".token").count() > 20


def test_reasoning_is_shown_while_it_is_written_and_then_folded(page_of, triton):
    page = page_of(chat_template=TEMPLATES / "thinking.jinja")
    thought = saying("<think>\nWell *now*")[0]._replace(finish_reason=None, statistics=None)
    triton.script = lambda _: [thought, FOREVER]
    send(page, "first", done=False)
    reasoning = page.locator("details")
    expect(reasoning.get_by_text("Well *now*")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped before the answer.")).to_be_visible()
    triton.script = lambda _: [thought, *saying(" then\n</think>\n\nSo **yes**.")]
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".text strong")).to_have_text("yes")
    expect(reasoning.get_by_text("Well *now*")).to_be_hidden()
    page.get_by_text("Reasoning", exact=True).click()
    expect(reasoning).to_have_text("ReasoningWell *now* then")
    finished(page)
    expect(reasoning.get_by_text("Well *now*")).to_be_visible()
    page.get_by_role("button", name="Copy answer").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "So **yes**."
    send(page, "second")
    assert "So **yes**." in asked(triton)
    assert "Well" not in asked(triton)


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "text <svg onload=window.hacked=1> text",
    "<a href='javascript:window.hacked=1'>click</a>",
    "[click](javascript:window.hacked=1)",
    "[click](data:text/html,<script>window.hacked=1</script>)",
    "![x](https://evil.example/pixel.png)",
    '![x](https://evil.example/p.png"onerror="window.hacked=1)',
    "<style>body { display: none }</style>",
    "<iframe src='https://evil.example'></iframe>",
    "<form action='https://evil.example'><button>Send</button></form>",
    '```html"><script>window.hacked=1</script>\n<script>window.hacked=1</script>\n```',
    "<math><mtext><table><mglyph><style><!--</style><img src onerror=window.hacked=1>",
]


def test_hostile_output_stays_text(page, triton):
    for text in HOSTILE:
        triton.script = lambda _, text=text: saying(text)
        send(page, "attack")
        page.get_by_role("button", name="New chat").click()
        page.locator("#chat-list a").first.click()
        found = page.locator(".text").evaluate(
            """e => e.querySelectorAll("script, img, svg, style, iframe, form, [onerror]").length
                + [...e.querySelectorAll("a[href]")].filter(a => a.protocol !== "https:").length"""
        )
        assert found == 0, text
        page.get_by_role("button", name="New chat").click()
    assert page.evaluate("window.hacked") is None


def test_html_in_an_answer_is_shown(page, triton):
    triton.script = lambda _: saying("Use <b>bold</b> & <br>\n\n<div>\nblock\n</div>")
    send(page)
    expect(page.locator(".text")).to_contain_text("Use <b>bold</b> & <br>")
    expect(page.locator(".text")).to_contain_text("<div>\nblock\n</div>", use_inner_text=True)


def test_the_content_security_policy_allows_only_the_gateway(page):
    response = page.goto(page.url)
    policy = response.headers["content-security-policy"]
    assert policy == "default-src 'self'; frame-ancestors 'none'"


def test_libraries_of_the_page_come_with_their_licenses():
    vendor = ROOT / "tandem" / "gateway" / "page" / "vendor"
    assert {path.stem for path in vendor.glob("*.js")} == {
        path.stem for path in vendor.glob("*.LICENSE")
    }


# ---- Everyone can use it


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_with_enough_contrast(browser, url, triton, scheme):
    context = browser.new_context(
        viewport={"width": 390, "height": 740}, has_touch=True, color_scheme=scheme
    )
    page = context.new_page()
    page.goto(url)
    triton.script = lambda _: [FIRST, SECOND, LAST._replace(text="# " + "W" * 90)]
    page.locator("#prompt").fill("W" * 60)
    page.get_by_role("button", name="Send").click()
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for kind in ("accepted", "correction"):
        assert contrast(page.locator(f".text .{kind}").first) >= 4.5
    page.get_by_role("button", name="Chats").click()
    expect(page.locator("#chat-list a")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#chat-list a")).to_be_hidden()
    assert page.locator("#answers").evaluate("e => e.clientHeight") > 740 / 2
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#examples")).to_be_visible()
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_fix(browser, url, triton, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is injected
    page = context.new_page()
    page.goto(url)
    found = [axe.run(page)]
    page.get_by_label("Compare with and without drafts").check()
    for kind in ("accepted", "correction"):
        triton.script = lambda _, kind=kind: saying(MARKDOWN, kind)
        send(page)
        found.append(axe.run(page))
        page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Settings").click()
    found.append(axe.run(page))
    assert [one.response["violations"] for one in found] == [[]] * 4
    context.close()


def test_an_answer_is_announced_once_and_not_token_by_token(page, triton):
    page.evaluate(
        """() => {
            window.heard = [];
            new MutationObserver(() => heard.push(announcer.textContent))
                .observe(announcer, {childList: true, characterData: true, subtree: true});
        }"""
    )
    send(page)
    assert page.evaluate("heard") == ["def main():\n#"]
    assert page.locator("#turns [aria-live], #turns [role=status]").count() == 0


def test_the_page_works_by_keyboard_alone(page):
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    finished(page)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    assert {
        "new",
        "colors",
        "show-settings",
        "compare",
        "send",
        "Edit",
        "Copy answer",
        "Regenerate",
    } <= reached


def test_the_page_lists_the_drafters_and_every_control_has_a_label(page):
    names = page.locator("#drafter option").all_text_contents()
    assert names == ["default", "prompt_lookup", "hybrid", "repeat", "none"]
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button")]
            .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel || e.hidden))
            .map((e) => e.id)"""
    )
    assert unnamed == []
    assert page.locator("html").get_attribute("lang") == "en"
