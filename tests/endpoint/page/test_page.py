"""The page in a real browser: over the real endpoint with the bundled pair, and over streams that misbehave."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys as Press
from starlette.datastructures import State

from endpoint.edge.page import HEADERS, PATHS, install_page
from endpoint.http.events import DONE, event
from tests.endpoint.page.browser import Page, chromium
from tests.endpoint.toy_app import BEARER, KEY
from tests.endpoint.web import ask, samples_of, served

EXAMPLES = ("Say <b>hello</b>.", "Count to three.")


def chunk(
    text: str, *, is_accepted: bool = False, finish_reason: str | None = None, token_ids: Sequence[int] = ()
) -> bytes:
    """Write an event of a completion's stream."""
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish_reason,
        "draft_spans": [{"text": text, "is_accepted": is_accepted}],
        "token_ids": list(token_ids),
        "draft_counts": {"num_tokens": len(token_ids), "num_draft_tokens": 0, "num_accepted_tokens": 0},
    }
    return event({"choices": [choice]})


def ended(text: str, *token_ids: int) -> list[bytes]:
    """Write the stream of an answer that ends by itself."""
    return [chunk(text, finish_reason="stop", token_ids=token_ids), DONE]


def canned_app() -> FastAPI:
    """Return an application that streams `app.state.pieces`, each in its own packet, and keeps the bodies it got.

    A request without drafts gets `app.state.pieces_without`, if there are any.
    """
    app = FastAPI()
    reset(app)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, **app.state.described} for name in app.state.names]}

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> Any:
        app.state.asked.append(body)
        is_without = body.get("num_speculative_tokens") == 0 and app.state.pieces_without is not None
        chosen = app.state.pieces_without if is_without else app.state.pieces
        if isinstance(chosen, JSONResponse):
            return chosen

        async def pieces() -> AsyncIterator[bytes]:
            for piece in chosen:
                yield piece
                await asyncio.sleep(0.01)  # a packet of its own

        return StreamingResponse(pieces(), media_type="text/event-stream")

    install_page(app, needs_key=False, examples=EXAMPLES)
    return app


def reset(app: FastAPI) -> None:
    """Forget what was asked and what is to be sent."""
    app.state.asked, app.state.pieces, app.state.pieces_without = [], [], None
    app.state.names = ["canned"]
    app.state.described = {"warning": "", "exact": "proved", "controls_drafts": True}


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]  # it needs Chromium, and one at a time
PROMPT, SEED = "Tell me a story about a raven.", 11
EQUAL = "Both texts are equal, token for token."
NOTHING = "\N{EN DASH}"
TEXT, CHAT = "the beginning of a text", "a message of a chat"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def canned() -> Iterator[tuple[FastAPI, int]]:
    app = canned_app()
    with served(app) as port:
        yield app, port


@pytest.fixture
def page(chrome: Chrome, whole: int) -> Page:
    return Page(chrome, whole)


@pytest.fixture
def canned_page(chrome: Chrome, canned: tuple[FastAPI, int]) -> tuple[Page, State]:
    """The page before the server of canned pieces, and what that server sends and was asked."""
    app, port = canned
    reset(app)
    return Page(chrome, port), app.state


def streamed(port: int, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, requested without a browser."""
    drafts = {"include_draft_spans": True, "include_rejected_drafts": True}
    options = {"stream": True, "stream_options": {"include_usage": True}, **drafts}
    lines = ask(port, path, {**body, **options}, headers=BEARER).body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def spans_of(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the events' text in pieces with their kinds, where neighbours of one kind are one piece."""
    spans = []
    for choice in (choice for each in events for choice in each["choices"]):
        for span in choice.get("draft_spans", ()):
            if "rejected" in span:
                visible = span["rejected"].replace("\n", "⏎").strip() or "␣"
                spans.append((visible, f"rejected {len(spans)}"))
            if span["text"]:
                spans.append((span["text"], "accepted" if span["is_accepted"] else "written"))
    grouped = groupby(spans, key=lambda span: span[1])
    return [("".join(text for text, _ in group), kind.partition(" ")[0]) for kind, group in grouped]


@pytest.mark.parametrize(
    ("kind", "path", "prompt"),
    [(TEXT, "/v1/completions", {"prompt": PROMPT}), (CHAT, "/v1/chat/completions", None)],
    ids=["text", "chat"],
)
def test_a_text_is_shown_with_what_its_drafts_did_beside_the_same_text_without_drafts(page, whole, kind, path, prompt):
    body = prompt or {"messages": [{"role": "user", "content": PROMPT}]}
    body |= {"max_tokens": 60, "temperature": 0.8, "seed": SEED}
    events = streamed(whole, path, **body)
    page.send(key=KEY, prompt=PROMPT, kind=kind, max_tokens=60, seed=SEED)
    assert page.until_ended() == EQUAL
    choice = json.loads(ask(whole, path, body, headers=BEARER).body)["choices"][0]
    assert page.output() == page.output("without") == (choice["text"] if prompt else choice["message"]["content"])
    assert page.spans() == spans_of(events)
    assert {kind for _, kind in page.spans()} == {"accepted", "written", "rejected"}
    assert {kind for _, kind in page.spans("without")} == {"written"}
    drafts, num_tokens = events[-1]["metrics"]["speculative_decoding"], events[-1]["usage"]["completion_tokens"]
    rounds = sum(choice.get("draft_counts", {}).get("num_tokens", 0) > 0 for e in events for choice in e["choices"])
    assert page.number("rate") == f"{100 * drafts['draft_acceptance_rate']:.1f} %"
    assert page.number("round") == f"{num_tokens / rounds:.2f}"
    assert (page.number("rate", "without"), page.number("round", "without")) == (NOTHING, "1.00")
    for side in ("with", "without"):
        assert page.number("tokens", side) == str(num_tokens)
        assert re.fullmatch(r"\d+ ms", page.number("first", side))
        assert float(page.number("speed", side)) > 0
    assert page.verdict() == ("equal", f"=\n{EQUAL} {num_tokens} tokens, in {rounds} rounds instead of {num_tokens}.")
    assert page.text("model") == "some/pair"
    assert page.complaints() == []


DIFFERENT = {
    "a text that goes on otherwise": (ended("one two", 1, 2), ended("one six", 1, 3), "after 1 tokens.", "“one six”"),
    "a text that is longer": (ended("one", 1), ended("one two", 1, 2), "after 1 tokens.", "“one two” without it"),
    "other tokens of one text": (ended("one two", 1, 2), ended("one two", 1, 4), "after 1 tokens.", "“one two”"),
    "another text of the same tokens": (ended("one", 1), ended("ONE", 1), "after 1 tokens.", "“ONE” without it"),
}


@pytest.mark.parametrize(("with_draft", "without", "where", "quoted"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_texts_that_differ_are_said_to_differ(canned_page, with_draft, without, where, quoted):
    page, server = canned_page
    server.pieces, server.pieces_without = with_draft, without
    for exact, why in (("proved", "this is a fault"), ("no", "does not promise equal texts")):
        server.described["exact"] = exact
        page.send(prompt="x")
        assert page.until_ended() == f"The texts differ {where}"
        outcome, said = page.verdict()
        assert outcome == "differs"
        assert quoted in said
        assert why in said
        assert page.find("status").get_attribute("class") == "wrong"


def test_a_model_can_be_chosen_where_there_are_several_and_stays_chosen(canned_page):
    page, server = canned_page
    server.pieces = ended("one", 1)
    assert not page.find("model-field").is_displayed(), "there is nothing to choose"
    server.names = ["base", "pirate", "<b>poet</b>"]
    page.send(prompt="x", sides="with")
    assert page.until_ended() == "Ended by itself."
    assert (page.text("model"), server.asked[-1]["model"]) == ("base", "base")
    page.fill(model_choice="<b>poet</b>")
    page.until(lambda: page.text("model") == "<b>poet</b>", "the model is not shown")
    for _ in range(2):
        page.send(prompt="x")
        page.until(lambda: page.find("send").is_enabled(), "the answer does not end")
        assert server.asked[-1]["model"] == "<b>poet</b>"
    server.names = ["base", "pirate"]
    page.send(prompt="x")
    page.until(lambda: page.text("model") == "base", "a model that is gone stays chosen")


def test_texts_that_were_stopped_are_not_said_to_be_equal(canned_page):
    page, server = canned_page
    server.pieces = ended("one two", 1, 2)
    server.pieces_without = [chunk("one", token_ids=[1]), *[b": still there\n\n"] * 3000]
    page.send(prompt="x")
    page.until(lambda: page.output("without"), "no text without the draft")
    page.find("prompt").send_keys(Press.ESCAPE)
    assert page.until_ended() == "The texts are not compared to the end."
    assert page.verdict() == ("open", "…\nThe texts are not compared to the end. Their first 1 tokens are equal.")
    assert (page.note(), page.note("without")) == ("Ended by itself.", "Stopped.")


def test_the_second_text_is_asked_for_when_the_first_one_has_ended(canned_page):
    page, server = canned_page
    server.pieces = [chunk("one", token_ids=[1]), *[b": still there\n\n"] * 3000]
    page.send(prompt="x")
    page.until(page.output, "no text")
    assert len(server.asked) == 1
    assert page.note("without").startswith("It is written after the other one")
    page.find("prompt").send_keys(Press.ESCAPE)
    assert page.until_ended() == "Stopped."
    assert page.note("without") == "It was not written."
    assert not page.chrome.find_elements(By.CLASS_NAME, "verdict")
    assert len(server.asked) == 1


def test_counts_and_text_are_shown_while_the_text_is_written(canned_page):
    page, server = canned_page
    counts = {"num_tokens": 3, "num_draft_tokens": 4, "num_accepted_tokens": 2}
    choice = {"index": 0, "text": "half", "finish_reason": None, "draft_counts": counts}
    server.pieces = [event({"choices": [choice]}), *[b": still there\n\n"] * 3000]
    page.send(prompt="x", sides="with")
    page.until(lambda: page.output() == "half", "no text while it is written")
    assert not page.find("send").is_enabled()
    assert [page.number(name) for name in ("rate", "round", "tokens")] == ["50.0 %", "3.00", "3"]
    assert page.answer().find_element(By.CLASS_NAME, "output").get_attribute("aria-busy") == "true"
    page.find("prompt").send_keys(Press.ESCAPE)
    assert page.until_ended() == "Stopped."
    assert page.output() == "half"
    assert page.answer().find_element(By.CLASS_NAME, "output").get_attribute("aria-busy") == "false"


def num_cancelled(port: int) -> float:
    samples = samples_of(ask(port, "/metrics", headers=BEARER).body)
    return sum(sample.value for sample in samples if sample.labels.get("finished_reason") == "cancelled")


@pytest.mark.parametrize("how", ["the button", "the key"])
def test_stopping_ends_it_in_the_engine_too(page, whole, how):
    before = num_cancelled(whole)
    page.fill(key=KEY, max_tokens=400, temperature="1.5", sides="without")
    for seed in range(8):  # a drawn text may end by itself before it is stopped
        page.send(prompt="The", kind=TEXT, seed=seed)
        page.until(lambda: page.output("without"), "no text")
        if how == "the button":
            page.find("stop").click()
        else:
            page.find("conversation").send_keys(Press.ESCAPE)
        if page.until_ended() == "Stopped.":
            break
    else:
        pytest.fail("eight texts ended by themselves")
    page.until(lambda: num_cancelled(whole) == before + 1, "the engine writes on")
    assert not page.find("stop").is_enabled()


def test_each_turn_is_asked_with_those_before_it_until_a_new_chat_begins(canned_page):
    page, server = canned_page
    for prompt, answer in (("hello", "hi"), ("and?", "so"), ("more", "no")):
        server.pieces = ended(answer, 1)
        page.send(prompt=prompt)
        assert page.until_ended() == EQUAL
        assert page.find("prompt").get_property("value") == ""
    said = [
        {"role": role, "content": content}
        for prompt, answer in (("hello", "hi"), ("and?", "so"), ("more", "no"))
        for role, content in (("user", prompt), ("assistant", answer))
    ]
    assert [body["messages"] for body in server.asked] == [said[:1], said[:1], said[:3], said[:3], said[:5], said[:5]]
    assert len(page.chrome.find_elements(By.CLASS_NAME, "turn")) == 3
    page.find("new-chat").click()
    assert not page.chrome.find_elements(By.CLASS_NAME, "turn")
    assert page.find("welcome").is_displayed()
    assert page.text("status") == ""
    page.send(prompt="anew")
    page.until_ended()
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "anew"}]


def test_an_example_is_sent_when_it_is_clicked_and_shown_as_text(canned_page):
    page, server = canned_page
    server.pieces = ended("hello", 1)
    buttons = page.chrome.find_elements(By.CSS_SELECTOR, "#examples button")
    assert [button.text for button in buttons] == list(EXAMPLES)
    page.fill(kind=TEXT)
    buttons[0].click()
    assert page.until_ended() == EQUAL
    assert server.asked[0]["messages"] == [{"role": "user", "content": EXAMPLES[0]}]
    assert not page.find("welcome").is_displayed()
    assert not page.chrome.find_elements(By.CSS_SELECTOR, "#turns b")


def test_a_key_is_asked_for_only_where_one_is_needed(page, canned_page, whole):
    open_page, _ = canned_page
    assert not open_page.find("key").is_displayed()
    open_page.until(lambda: open_page.text("model") == "canned", "the model is not named before the first prompt")
    assert json.loads(ask(open_page.port, "/page/page.json").body) == {"needs_key": False, "examples": list(EXAMPLES)}
    closed_page = Page(page.chrome, whole)
    assert closed_page.find("key").is_displayed()
    assert json.loads(ask(whole, "/page/page.json").body) == {"needs_key": True, "examples": []}


def test_the_key_is_kept_in_its_field_and_nowhere_else(page, chrome):
    page.send(key=KEY, prompt=PROMPT, max_tokens=4)
    page.until_ended()
    assert page.find("key").get_attribute("type") == "password"
    stored = "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, name])"
    assert chrome.execute_script(stored) == json.dumps(
        [{}, {}, "", f"http://127.0.0.1:{page.port}/", ""], separators=(",", ":")
    )
    assert chrome.get_cookies() == []
    assert KEY not in chrome.page_source
    chrome.refresh()
    assert page.find("key").get_property("value") == ""
    chrome.get("about:blank")
    chrome.back()
    assert page.find("key").get_property("value") == ""


def test_without_a_key_the_page_shows_the_servers_error_and_keeps_the_prompt(page):
    page.send(prompt=PROMPT)
    assert page.until_ended() == "Send an API key in the header Authorization: Bearer KEY."
    assert page.chrome.switch_to.active_element.get_attribute("id") == "key"
    page.send(key="sk-not-one-of-the-keys")
    page.until(lambda: page.text("status") == "The API key is not valid here.", "it does not say why")
    assert page.find("status").get_attribute("class") == "wrong"
    assert page.find("prompt").get_property("value") == PROMPT
    assert not page.chrome.find_elements(By.CLASS_NAME, "turn")


def test_a_refused_request_shows_the_reason_and_what_to_do(page):
    page.send(key=KEY, prompt="x " * 3000)
    said = page.until_ended()
    assert "the prompt has" in said
    assert said.endswith("Start a new chat, or ask for fewer tokens.")
    assert page.note() == said
    assert page.note("without") == "It was not written."
    assert page.find("prompt").get_property("value") == "x " * 3000, "it can be mended and sent again"
    page.fill(prompt=PROMPT, max_tokens=4)
    page.send()
    page.until(lambda: page.text("status") == EQUAL, "what failed is a part of the next prompt")


MISBEHAVING: dict[str, tuple[Any, str, str]] = {
    "an end without [DONE]": ([chunk("half")], "The answer broke off.", "half"),
    "an error in mid-stream": (
        [chunk("half"), event({"error": {"message": "The model <b>failed</b>.", "type": "server_error"}})],
        "The model <b>failed</b>.",
        "half",
    ),
    "an answer of another server": (JSONResponse({"detail": "no"}, 502), "The server answered 502.", ""),
    "an error with its reason": (JSONResponse({"error": {"message": "No."}}, 429), "No.", ""),
    "a busy server": (
        JSONResponse({"error": {"message": "Full.", "code": "server_busy"}}, 429),
        "Full. Try again in a moment.",
        "",
    ),
    "markup": (
        [chunk("<img src=x onerror=alert(1)>"), chunk("<script>alert(1)</script>", finish_reason="stop"), DONE],
        "Ended by itself.",
        "<img src=x onerror=alert(1)><script>alert(1)</script>",
    ),
    "a stream in single bytes": (
        [bytes([byte]) for byte in chunk("é €😀\n", finish_reason="length") + DONE],
        "Ended at the limit of tokens.",
        "é €😀\n",
    ),
    "events in one packet, with comments and other line ends": (
        [b": hello\r\n\r\n" + chunk("a").replace(b"\n", b"\r\n") + chunk("b", finish_reason="stop") + DONE],
        "Ended by itself.",
        "ab",
    ),
    "something after [DONE]": ([chunk("a", finish_reason="stop"), DONE, chunk("b")], "Ended by itself.", "a"),
}


@pytest.mark.parametrize(("pieces", "status", "text"), MISBEHAVING.values(), ids=MISBEHAVING.keys())
def test_a_stream_is_shown_as_text_with_the_reason_of_its_end(canned_page, pieces, status, text):
    page, server = canned_page
    server.pieces = pieces
    page.send(prompt="x", sides="with")
    assert page.until_ended() == status == page.note()
    assert page.output() == text
    assert not page.chrome.find_elements(By.CSS_SELECTOR, ".output img, .output script")
    assert not [said for said in page.complaints() if "status of" not in said]


def test_a_rejected_draft_is_shown_as_text(canned_page):
    page, server = canned_page
    spans = [{"text": "a", "is_accepted": False, "rejected": "<b>\nb</b>"}]
    server.pieces = [
        event({"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "draft_spans": spans}]}),
        DONE,
    ]
    page.send(prompt="x", sides="with")
    page.until_ended()
    assert page.spans() == [("<b>⏎b</b>", "rejected"), ("a", "written")]
    assert page.output() == "a"


def test_a_lost_server_is_reported(chrome):
    with served(canned_app()) as port:
        page = Page(chrome, port)
    page.send(prompt="x")
    assert page.until_ended() == "The server cannot be reached. Is it still running?"


def test_both_requests_hold_what_was_typed_and_only_one_of_them_drafts(canned_page):
    page, server = canned_page
    server.pieces = ended("", 1)
    page.send(prompt="a", max_tokens=7, temperature="0.5", seed=2**53 - 1, kind=TEXT)
    page.until_ended()
    page.send(prompt="a", kind=CHAT, sides="without")
    page.until(lambda: len(server.asked) == 3, "it was not asked")
    shared = {"model": "canned", "max_tokens": 7, "temperature": 0.5, "seed": 2**53 - 1, "return_token_ids": True}
    shared |= {"stream": True, "stream_options": {"include_usage": True}, "include_draft_spans": True}
    assert server.asked == [
        {**shared, "prompt": "a", "include_rejected_drafts": True},
        {**shared, "prompt": "a", "num_speculative_tokens": 0},
        {**shared, "messages": [{"role": "user", "content": "a"}], "num_speculative_tokens": 0},
    ]


def test_a_server_that_cannot_do_without_drafts_is_asked_for_one_text(canned_page):
    page, server = canned_page
    server.described["controls_drafts"] = False
    server.pieces = ended("one", 1)
    page.send(prompt="x")
    assert page.until_ended() == "Ended by itself."
    assert not page.chrome.find_elements(By.CSS_SELECTOR, "[data-side=without]")
    assert [{"num_speculative_tokens", "include_rejected_drafts"} & body.keys() for body in server.asked] == [set()]
    assert page.find("no-choice").is_displayed()
    choices = page.chrome.find_elements(By.CSS_SELECTOR, "[name=sides]")
    assert [choice.is_enabled() for choice in choices] == [False, True, False]


def test_a_lossy_server_is_warned_of(canned_page):
    page, server = canned_page
    server.pieces = ended("", 1)
    for warning in ("the texts <b>are not</b> the target's", ""):
        server.described["warning"] = warning
        page.send(prompt="x")
        page.until(lambda warning=warning: page.text("warning") == warning, "the warning is not shown")
        assert page.find("warning").is_displayed() == bool(warning)
        page.until_ended()


def test_nothing_is_sent_while_a_field_is_wrong_or_an_answer_is_streaming(canned_page):
    page, server = canned_page
    server.pieces = [b": wait\n\n"] * 3000
    page.send()
    page.find("settings").find_element(By.TAG_NAME, "summary").click()
    page.chrome.execute_script("document.getElementById('max-tokens').value = 0")
    page.send(prompt="x")
    assert page.find("max-tokens").is_displayed(), "what is wrong must be seen"
    assert server.asked == []
    page.send(max_tokens=5)
    page.until(lambda: server.asked, "it was not asked")
    page.send(prompt="y")
    page.find("prompt").send_keys(Press.ESCAPE)
    page.until_ended()
    assert len(server.asked) == 1


def test_enter_sends_and_shift_enter_begins_a_line(canned_page):
    page, server = canned_page
    server.pieces = ended("", 1)
    page.find("prompt").send_keys("a", Press.SHIFT, Press.ENTER, Press.NULL, "b", Press.ENTER)
    page.until_ended()
    assert server.asked[0]["messages"] == [{"role": "user", "content": "a\nb"}]


def test_the_policy_lets_no_other_code_run(page, chrome):
    chrome.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script); document.body.insertAdjacentHTML('beforeend', '<p id=p style=color:red>p</p>');"
    )
    assert chrome.execute_script("return window.ran") is None
    assert page.style("#p", "color") == page.style("body", "color")
    assert len([said for said in page.complaints() if "Content Security Policy" in said]) == 2


def test_the_page_loads_its_own_files_and_nothing_else(page, chrome, whole):
    loaded = chrome.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    own = {f"http://127.0.0.1:{whole}{path}" for path in PATHS if path != "/"}
    assert {address for address in loaded if not address.startswith("data:")} == own
    for path in PATHS:
        answer = ask(whole, path)
        assert answer.status == 200
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert not re.search(rb"https?://", answer.body)
    assert "unsafe" not in HEADERS["content-security-policy"]


def box(page: Page, element: Any) -> tuple[float, ...]:
    script = "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]"
    return tuple(page.chrome.execute_script(script, element))


@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_the_page_fits_every_width(canned_page, width):
    page, server = canned_page
    server.pieces = ended("x" * 3000, 1)
    with page.screen(width, 800):
        page.chrome.execute_script("document.getElementById('settings').open = true")
        page.send(prompt="x" * 300)
        page.until_ended()
        assert page.chrome.execute_script("return document.documentElement.scrollWidth") <= width
        for element in page.chrome.find_elements(By.CSS_SELECTOR, "input, select, textarea, button, .output, dd"):
            left, top, right, bottom = box(page, element)
            if right > left:  # it is shown
                assert left >= 0
                assert right <= width
                assert min(right - left, bottom - top) >= 17


def contrast(ink: str, paper: str) -> float:
    """The ratio of WCAG 2.2 of two computed colours."""

    def luminance(colour: str) -> float:
        channels = [int(channel) / 255 for channel in re.findall(r"\d+", colour)[:3]]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_suffices_in_both_color_schemes(canned_page, scheme):
    page, server = canned_page
    server.pieces, server.pieces_without = ended("one", 1), ended("two", 2)
    page.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        page.send(prompt="x")
        page.until_ended()
        own = [(one, one) for one in ("body", ".answer", ".accepted", "#send", "#prompt", ".prompt", ".verdict")]
        on_panel = [(ink, ".answer") for ink in ("dt", ".note", ".output", ".rejected", "#model", "#keys", "#status")]
        for ink, paper in (*own, *on_panel, (".output", ".accepted"), (".hint", "body"), (".legend p", "body")):
            ratio = contrast(page.style(ink, "color"), page.style(paper, "background-color"))
            assert ratio >= 4.5, (ink, paper, ratio)
        assert (contrast(page.style("body", "background-color"), "rgb(0, 0, 0)") < 3) is (scheme == "dark")
    finally:
        page.emulate("setEmulatedMedia", features=[])


def test_the_keyboard_reaches_everything_in_the_order_in_which_it_is_read(page, chrome):
    assert chrome.switch_to.active_element.get_attribute("id") == "prompt"
    page.send(key=KEY, prompt=PROMPT, max_tokens=4)
    page.until_ended()
    focused = []
    chrome.execute_script("document.getElementById('new-chat').focus()")
    for _ in range(15):
        active = chrome.switch_to.active_element
        focused.append(active.get_attribute("id") or active.get_attribute("class") or active.accessible_name)
        active.send_keys(Press.TAB)
    settings = ["key", "with and without the draft", "kind", "seed", "new-seed", "temperature", "max-tokens"]
    texts = ["conversation", "output", "output", "prompt", "send"]
    assert focused == ["new-chat", "Settings", *settings, "show-rejected", *texts]


def test_each_field_has_an_accessible_name(page, chrome):
    page.send(key=KEY, prompt=PROMPT, max_tokens=4)
    page.until_ended()
    fields = chrome.find_elements(By.CSS_SELECTOR, "input, select, textarea, button, summary, main, ul, .output")
    names = {field.accessible_name for field in fields if field.is_displayed()}
    assert "" not in names
    assert {"Prompt", "API key", "Seed", "Temperature", "Text with the draft", "Text without the draft"} <= names
    assert page.find("status").get_attribute("role") == "status"


def test_the_page_is_served_only_if_it_is_switched_on(toy):
    assert [ask(toy, path, headers=BEARER).status for path in PATHS] == [404] * len(PATHS)
