"""The page in a real browser: over the real endpoint with the bundled pair, and over streams that misbehave."""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys as Press
from starlette.datastructures import State

from endpoint.edge.page import HEADERS, PATHS
from endpoint.http.events import DONE, event
from tests.endpoint.page.browser import Page, chromium
from tests.endpoint.page.canned_app import canned_app, chunk
from tests.endpoint.toy_app import BEARER, KEY
from tests.endpoint.web import ask, samples_of, served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]  # it needs Chromium, and one at a time
PROMPT = "Tell me a story about a raven."


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
    app.state.asked = []
    return Page(chrome, port), app.state


def streamed(port: int, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, requested without a browser."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "include_draft_spans": True}
    lines = ask(port, path, {**body, **options}, headers=BEARER).body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def spans_of(events: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Return the events' text in pieces, where neighbours of one kind are one piece."""
    spans = [
        (span["text"], span["is_accepted"])
        for event in events
        for choice in event["choices"]
        for span in choice.get("draft_spans", ())
    ]
    return [("".join(text for text, _ in group), kind) for kind, group in groupby(spans, key=lambda span: span[1])]


def numbers(page: Page) -> list[str]:
    return [page.text(name) for name in ("acceptance-rate", "acceptance-length", "tokens")]


@pytest.mark.parametrize(
    ("kind", "path", "prompt"),
    [("text", "/v1/completions", {"prompt": PROMPT}), ("a message", "/v1/chat/completions", None)],
    ids=["text", "chat"],
)
def test_a_text_is_shown_with_its_accepted_draft_tokens_shaded(
    page: Page, whole: int, kind: str, path: str, prompt: dict[str, Any] | None
) -> None:
    body = prompt or {"messages": [{"role": "user", "content": PROMPT}]}
    events = streamed(whole, path, **body, max_tokens=60, temperature=0)
    page.send(key=KEY, prompt=PROMPT, kind=kind, max_tokens=60)
    assert page.until_ended().startswith("Ended")
    unstreamed = ask(whole, path, {**body, "max_tokens": 60, "temperature": 0}, headers=BEARER)
    choice = json.loads(unstreamed.body)["choices"][0]
    assert page.text("output") == (choice["text"] if prompt else choice["message"]["content"])
    assert page.spans() == spans_of(events)
    assert {is_drafted for _, is_drafted in page.spans()} == {True, False}
    drafts, usage = events[-1]["metrics"]["speculative_decoding"], events[-1]["usage"]
    assert numbers(page) == [
        f"{100 * drafts['draft_acceptance_rate']:.1f} %",
        f"{drafts['mean_acceptance_length']:.2f}",
        str(usage["completion_tokens"]),
    ]
    assert float(page.text("speed")) > 0
    assert page.text("model") == "some/pair"
    assert page.style(".drafted", "background-color") != page.style("#output", "background-color")
    assert page.complaints() == []


def test_the_counts_in_the_stream_add_up_to_those_at_its_end(whole: int) -> None:
    events = streamed(whole, "/v1/completions", prompt=PROMPT, max_tokens=60, temperature=0)
    counts = [choice["draft_counts"] for event in events for choice in event["choices"]]
    drafts = events[-1]["metrics"]["speculative_decoding"]
    assert sum(count["num_tokens"] for count in counts) == events[-1]["usage"]["completion_tokens"]
    assert sum(count["num_draft_tokens"] for count in counts) == drafts["num_draft_tokens"]
    assert sum(count["num_accepted_tokens"] for count in counts) == drafts["num_accepted_draft_tokens"]
    assert sum(count["num_draft_tokens"] > 0 for count in counts) == drafts["num_spec_steps"]


def test_counts_and_text_are_shown_while_the_text_is_written(canned_page: tuple[Page, State]) -> None:
    page, server = canned_page
    counts = {"num_tokens": 3, "num_draft_tokens": 4, "num_accepted_tokens": 2}
    choice = {"index": 0, "text": "half", "finish_reason": None, "draft_counts": counts}
    server.pieces = [event({"choices": [choice]}), *[b": still there\n\n"] * 3000]
    page.send(prompt="x")
    page.until(lambda: page.text("output") == "half", "no text while it is written")
    assert not page.find("send").is_enabled()
    assert numbers(page) == ["50.0 %", "3.00", "3"]
    assert page.find("output").get_attribute("aria-busy") == "true"
    page.find("prompt").send_keys(Press.ESCAPE)
    assert page.until_ended() == "Stopped."
    assert page.text("output") == "half"


def num_cancelled(port: int) -> float:
    samples = samples_of(ask(port, "/metrics", headers=BEARER).body)
    return sum(sample.value for sample in samples if sample.labels.get("finished_reason") == "cancelled")


@pytest.mark.parametrize("how", ["the button", "the key"])
def test_stopping_ends_it_in_the_engine_too(page: Page, whole: int, how: str) -> None:
    before = num_cancelled(whole)
    page.fill(key=KEY, prompt="The", max_tokens=400, temperature="1.5")
    for _ in range(8):  # a drawn text may end by itself before it is stopped
        page.send()
        page.until(lambda: page.text("output"), "no text")
        if how == "the button":
            page.find("stop").click()
        else:
            page.find("output").send_keys(Press.ESCAPE)
        if page.until_ended() == "Stopped.":
            break
    else:
        pytest.fail("eight texts ended by themselves")
    page.until(lambda: num_cancelled(whole) == before + 1, "the engine writes on")
    assert not page.find("stop").is_enabled()


def test_the_key_is_kept_in_its_field_and_nowhere_else(page: Page, chrome: Chrome) -> None:
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


def test_without_a_key_the_page_shows_the_servers_error(page: Page) -> None:
    page.send(prompt=PROMPT)
    assert page.until_ended() == "Send an API key in the header Authorization: Bearer KEY."
    page.send(key="sk-not-one-of-the-keys")
    page.until(lambda: page.text("status") == "The API key is not valid here.", "it does not say why")
    assert page.find("status").get_attribute("class") == "wrong"
    assert page.text("output") == ""


def test_a_refused_request_shows_the_reason(page: Page) -> None:
    page.send(key=KEY, prompt="word " * 3000, max_tokens=4)
    assert page.until_ended().startswith("This model's context is 512 tokens")


MISBEHAVING: dict[str, tuple[Any, str, str]] = {
    "an end without [DONE]": ([chunk("half")], "The answer broke off.", "half"),
    "an error in mid-stream": (
        [chunk("half"), event({"error": {"message": "The model <b>failed</b>.", "type": "server_error"}})],
        "The model <b>failed</b>.",
        "half",
    ),
    "an answer of another server": (JSONResponse({"detail": "no"}, 502), "The server answered 502.", ""),
    "an error with its reason": (JSONResponse({"error": {"message": "No."}}, 429), "No.", ""),
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
def test_a_stream_is_shown_as_text_with_the_reason_of_its_end(
    canned_page: tuple[Page, State], pieces: Any, status: str, text: str
) -> None:
    page, server = canned_page
    server.pieces = pieces
    page.send(prompt="x")
    assert page.until_ended() == status
    assert page.text("output") == text
    assert not page.chrome.find_elements(By.CSS_SELECTOR, "#output img, #output script")
    assert not [said for said in page.complaints() if "status of" not in said]


def test_a_lost_server_is_reported(chrome: Chrome) -> None:
    with served(canned_app()) as port:
        page = Page(chrome, port)
    page.send(prompt="x")
    assert page.until_ended() == "The server cannot be reached."


def test_the_request_holds_what_was_typed(canned_page: tuple[Page, State]) -> None:
    page, server = canned_page
    server.pieces = [chunk("", finish_reason="stop"), DONE]
    page.send(prompt="a\nb", max_tokens=7, temperature="0.5")
    page.until_ended()
    page.send(kind="a message")
    page.until(lambda: len(server.asked) == 2, "it was not asked")
    shared = {"model": "canned", "max_tokens": 7, "temperature": 0.5, "stream": True, "include_draft_spans": True}
    shared |= {"stream_options": {"include_usage": True}}
    assert server.asked == [{**shared, "prompt": "a\nb"}, {**shared, "messages": [{"role": "user", "content": "a\nb"}]}]


def test_a_lossy_server_is_warned_of(canned_page: tuple[Page, State]) -> None:
    page, server = canned_page
    server.pieces = [chunk("", finish_reason="stop"), DONE]
    for warning in ("the texts <b>are not</b> the target's", ""):
        server.warning = warning
        page.send(prompt="x")
        page.until(lambda warning=warning: page.text("warning") == warning, "the warning is not shown")
        assert page.find("warning").is_displayed() == bool(warning)
        page.until_ended()


def test_nothing_is_sent_while_a_field_is_wrong_or_an_answer_is_streaming(canned_page: tuple[Page, State]) -> None:
    page, server = canned_page
    server.pieces = [b": wait\n\n"] * 3000
    page.send()
    page.send(prompt="x", max_tokens=0)
    assert server.asked == []
    page.send(max_tokens=5)
    page.until(lambda: server.asked, "it was not asked")
    page.send()
    page.find("prompt").send_keys(Press.ESCAPE)
    page.until_ended()
    assert len(server.asked) == 1


def test_the_policy_lets_no_other_code_run(page: Page, chrome: Chrome) -> None:
    chrome.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script); document.body.insertAdjacentHTML('beforeend', '<p id=p style=color:red>p</p>');"
    )
    assert chrome.execute_script("return window.ran") is None
    assert page.style("#p", "color") == page.style("body", "color")
    assert len([said for said in page.complaints() if "Content Security Policy" in said]) == 2


def test_the_page_loads_its_own_three_files_and_nothing_else(page: Page, chrome: Chrome, whole: int) -> None:
    loaded = chrome.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    own = {f"http://127.0.0.1:{whole}{path}" for path in PATHS if path != "/"}
    assert {address for address in loaded if not address.startswith("data:")} == own
    for path in PATHS:
        answer = ask(whole, path)
        assert answer.status == 200
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert not re.search(rb"https?://", answer.body)
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_the_page_fits_every_width(page: Page, chrome: Chrome, width: int) -> None:
    page.emulate("setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    try:
        page.fill(key=KEY, prompt="x" * 300)
        box = "const b = arguments[0].getBoundingClientRect(); return [b.left, b.right, b.width, b.height]"
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
        for element in chrome.find_elements(By.CSS_SELECTOR, "input, select, textarea, button, #output, dd"):
            left, right, shown_width, shown_height = chrome.execute_script(box, element)
            assert left >= 0
            assert right <= width
            assert min(shown_width, shown_height) >= 20
    finally:
        page.emulate("clearDeviceMetricsOverride")


def contrast(ink: str, paper: str) -> float:
    """The ratio of WCAG 2.2 of two computed colours."""

    def luminance(colour: str) -> float:
        channels = [int(channel) / 255 for channel in re.findall(r"\d+", colour)[:3]]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_suffices_in_both_color_schemes(page: Page, scheme: str) -> None:
    page.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        own = [(one, one) for one in ("body", "#output", ".legend .drafted", "#send", "#prompt")]
        for ink, paper in (*own, (".hint", "body"), ("dt", "body"), ("#output", ".legend .drafted")):
            ratio = contrast(page.style(ink, "color"), page.style(paper, "background-color"))
            assert ratio >= 4.5, (ink, paper, ratio)
        assert (contrast(page.style("body", "background-color"), "rgb(0, 0, 0)") < 3) is (scheme == "dark")
    finally:
        page.emulate("setEmulatedMedia", features=[])


def test_the_keyboard_reaches_everything_in_the_order_in_which_it_is_read(page: Page, chrome: Chrome) -> None:
    focused = [page.chrome.switch_to.active_element.get_attribute("id")]
    page.find("key").click()
    for _ in range(6):
        focused.append(chrome.switch_to.active_element.get_attribute("id"))
        chrome.switch_to.active_element.send_keys(Press.TAB)
    focused.append(chrome.switch_to.active_element.get_attribute("id"))
    assert focused == ["prompt", "key", "prompt", "kind", "max-tokens", "temperature", "send", "output"]
    assert page.style("#output", "outline-style") == "solid"


def test_each_field_has_an_accessible_name(page: Page, chrome: Chrome) -> None:
    fields = chrome.find_elements(By.CSS_SELECTOR, "input, select, textarea, button, #output")
    names = [field.accessible_name for field in fields]
    assert len(names) == 8
    assert all(names)
    assert page.find("status").get_attribute("role") == "status"


def test_the_page_is_served_only_if_it_is_switched_on(toy: int) -> None:
    assert [ask(toy, path, headers=BEARER).status for path in PATHS] == [404, 404, 404]
