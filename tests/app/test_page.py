"""The explorer's page in a real browser, on a real server. Every test also fails on a console message or on a request
to another origin (see `open_tab`)."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

import uvicorn

from anyorder.app.server import create_app
from anyorder.translator import load
from tests.conftest import open_tab

pytestmark = pytest.mark.browser
TEXT = "Der Hund sieht das Haus."
NAMES = """() => [...document.querySelectorAll("button, input, select, textarea, [role=group], [role=img]")]
    .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)"""


@pytest.fixture(scope="module")
def origin(chromium: Any, folder: Path) -> Iterator[str]:
    """Where the explorer listens; not started where no browser could look at it."""
    app = uvicorn.Server(uvicorn.Config(create_app([str(folder)], device="cpu"), log_level="error", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=app.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        app.should_exit = True
        thread.join()


@pytest.fixture
def tab(chromium: Any, origin: str) -> Iterator[Any]:
    with open_tab(chromium, origin) as page:
        page.set_default_timeout(10_000)
        page.goto(origin)
        page.wait_for_selector("form.ask")
        yield page


def choose(tab: Any, *orders: str) -> None:
    ticked = tab.locator(".boxes input:checked")
    for _ in range(ticked.count()):
        ticked.first.click()
    for order in orders:
        tab.get_by_role("checkbox", name=order, exact=True).check()


def translate(
    tab: Any, text: str = TEXT, length: int | None = 6, orders: tuple[str, ...] = ("learned", "margin")
) -> None:
    """Types, chooses and presses; returns when the runs and the empty sentence to fill by hand are there."""
    tab.get_by_label("Sentence").fill(text)
    if length:
        tab.get_by_label("Length").first.select_option("number")
        tab.get_by_label("Number of subwords").fill(str(length))
    choose(tab, *orders)
    with tab.expect_response("**/api/step"):
        tab.get_by_role("button", name="Translate").click()
    tab.wait_for_selector(".compose:not([aria-busy]) .token")


def counts(tab: Any) -> list[int]:
    """Tokens filled in each view."""
    return tab.eval_on_selector_all(".views .fill", "all => all.map(view => view.querySelectorAll('.on').length)")


def blank(tab: Any, position: int) -> Any:
    return tab.locator(f".compose .token[data-i='{position}']")


def force(tab: Any, *positions: int) -> None:
    for position in positions:
        blank(tab, position).click()
        tab.wait_for_selector(f".compose .token.on[data-i='{position}']")


def said(tab: Any) -> dict[str, list[str]]:
    """What the address says after #."""
    return parse_qs(tab.url.partition("#")[2])


def test_type_translate_play_and_step_by_keyboard(tab: Any, folder: Path) -> None:
    assert tab.locator(".boxes .check").first.text_content() == "learned"
    assert tab.get_by_role("checkbox", name="learned", exact=True).is_checked()
    tab.get_by_label("Sentence").fill(TEXT)
    tab.get_by_label("Length").first.select_option("number")
    tab.get_by_label("Number of subwords").fill("6")
    choose(tab, "learned", "margin")
    tab.get_by_label("Sentence").focus()
    tab.keyboard.press("Control+Enter")
    tab.get_by_role("button", name="Pause").wait_for()  # it plays by itself
    assert tab.locator(".views h3").all_text_contents() == ["learned", "margin"]
    first, second = (tab.locator(".views .fill").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"]
    tab.locator("output.count", has_text="6 / 6").wait_for()
    assert counts(tab) == [6, 6]
    for i, order in enumerate(["learned", "margin"]):
        [made] = load(folder, "cpu").translate([TEXT], "de-en", order, length="fixed:6")
        view = tab.locator(".views .fill").nth(i)
        assert view.locator(".step").all_text_contents() == [str(step) for step in made.steps]
        assert view.locator(".fill-text").text_content() == made.text
    tab.locator("h1").click()
    for key, expected in [("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 6)]:
        tab.keyboard.press(key)
        assert counts(tab) == [expected] * 2, key
    tab.get_by_label("Speed").click()
    tab.keyboard.press("Home")
    tab.locator("h1").click()
    tab.keyboard.press("Space")
    tab.locator("output.count", has_text="6 / 6").wait_for()


def test_a_step_is_asked_for_candidates_and_the_order_s_distribution(tab: Any) -> None:
    translate(tab)
    tab.locator("h1").click()
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    asked: list[Any] = []
    tab.on("request", lambda request: asked.append(request.post_data_json))
    view = tab.locator(".views .fill").first
    masked = view.locator(".token:not(.on)")
    masked.nth(0).hover()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert "chosen by the policy" in view.locator(".tip").text_content()
    assert view.locator(".weighed").count() == 2
    assert view.locator(".weighed.next").count() == 1
    shares = [int(view.locator(".weighed").nth(i).get_attribute("data-score").rstrip("%")) for i in (0, 1)]
    assert 99 <= sum(shares) <= 101
    masked.nth(1).hover()
    view.locator(".tip", has_text=f"position{int(masked.nth(1).get_attribute('data-i')) + 1} of 6").wait_for()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert len(asked) == 1  # the same state is asked for once
    assert len(asked[0]["filled"]) == 4
    assert asked[0]["order"] == "learned"
    on = view.locator(".token.on").first
    on.hover()  # a token that is there: what was offered when it was written
    view.locator(".tip dt", has_text="token").wait_for()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert view.locator(".tip .candidates .word").first.text_content() == view.locator(".tip dd").first.text_content()
    tab.keyboard.press("ArrowLeft")
    assert view.locator(".weighed").count() == 0
    tab.get_by_label("Speed").focus()
    tab.keyboard.press("Tab")  # into the display's choices and on to the first sentence
    while not tab.evaluate("document.activeElement.matches('.views .token')"):
        tab.keyboard.press("Tab")
    view.locator(".tip .candidates li").nth(4).wait_for()


def test_an_order_by_hand_beside_the_others(tab: Any) -> None:
    translate(tab)
    assert tab.locator(".compose .blank").count() == 6
    assert tab.locator(".compose .guess").count() == 6
    assert tab.locator(".compose .next").count() == 1
    wanted = tab.locator(".compose .guess").nth(4).text_content()
    force(tab, 4, 1)
    assert blank(tab, 4).locator(".word").text_content() == wanted
    assert tab.locator(".compose .on .step").all_text_contents() == ["2", "1"]
    assert "4 masked" in tab.locator(".compose [role=status]").text_content()
    blank(tab, 0).hover()
    tab.locator(".compose .tip .candidates li").nth(4).wait_for()
    tab.get_by_text("All candidates").click()
    tab.locator(".card").nth(3).wait_for()
    assert tab.locator(".card").count() == 4
    tab.get_by_role("button", name="Undo").click()
    tab.locator(".card").nth(4).wait_for()
    blank(tab, 5).focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".compose .token.on[data-i='5']")
    assert said(tab)["filled"] == ["5.6"]
    assert tab.locator(".views .fill").count() == 2
    tab.get_by_role("button", name="Let the order finish").click()
    tab.locator(".views h3", has_text="by hand").wait_for()
    assert counts(tab) == [6, 6, 6]
    mine = tab.locator(".views .fill").nth(2)
    assert [mine.locator(".step").nth(i).text_content() for i in (4, 5)] == ["1", "2"]
    assert mine.locator(".fill-text").text_content()
    assert tab.get_by_role("button", name="Let the order finish").is_disabled()
    tab.get_by_role("button", name="Restart").click()
    tab.wait_for_selector(".compose .blank >> nth=5")
    assert tab.locator(".views .fill").count() == 2
    tab.get_by_label("Advice from").select_option("nobody")
    tab.wait_for_selector(".compose:not(:has(.next))")
    assert tab.get_by_role("button", name="Let the order finish").is_disabled()
    tab.locator(".compose").get_by_label("Length").fill("4")
    tab.keyboard.press("Tab")
    tab.locator(".compose .blank").nth(4).wait_for(state="detached")
    assert tab.locator(".compose .blank").count() == 4


def test_clicks_faster_than_the_server_are_all_kept(tab: Any) -> None:
    translate(tab)
    tab.evaluate("[5, 0, 3].forEach((i) => document.querySelector(`.compose [data-i='${i}']`).click())")
    tab.wait_for_selector(".compose .on >> nth=2")
    assert tab.locator(".compose .on .step").all_text_contents() == ["2", "3", "1"]


def test_a_link_brings_everything_back(tab: Any, chromium: Any, origin: str) -> None:
    translate(tab, TEXT + " Ümläute & <b>%23#?</b>", 7, ("learned", "outer-in", "uniform"))
    tab.get_by_label("Advice from").select_option("outer-in")
    force(tab, 2, 6)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.get_by_role("button", name="Copy link").click()
    tab.get_by_role("button", name="Link copied").wait_for()
    link = tab.evaluate("navigator.clipboard.readText()")
    assert link == tab.url
    look = "() => [...document.querySelectorAll('.views h3, .token .word, .token .step')].map((e) => e.textContent)"
    before = tab.evaluate(look)
    with open_tab(chromium, origin) as other:
        other.goto(link)
        other.wait_for_selector(".compose .on >> nth=1")
        assert other.evaluate(look) == before
        assert other.get_by_label("Sentence").input_value() == TEXT + " Ümläute & <b>%23#?</b>"
        assert other.get_by_label("Advice from").input_value() == "outer-in"
        assert other.locator(".boxes input:checked").count() == 3
        assert other.get_by_label("Number of subwords").input_value() == "7"
        assert other.url == link
        # A link with an order that has options, and a model that this server does not have.
        other.goto(f"{origin}/#text=Ein+Hund&model=none&direction=de-en&order=outer-in:stride%3D2&length=4")
        other.locator(".trouble", has_text="This server has no model none; small is used.").wait_for()
        assert other.locator(".views h3").all_text_contents() == ["outer-in:stride=2"]


def test_a_long_sentence_from_a_link_is_seen_whole(chromium: Any, origin: str) -> None:
    whole = "() => { const box = document.querySelector('textarea'); return box.scrollHeight <= box.clientHeight; }"
    with open_tab(chromium, origin) as tab:
        tab.set_viewport_size({"width": 700, "height": 900})
        tab.goto(f"{origin}/#text={'Ein+Hund+und+noch+' * 7}ein+Hund&model=small&direction=de-en")
        tab.reload()
        tab.get_by_label("Sentence").wait_for()
        tab.wait_for_function(whole)
        tall = tab.get_by_label("Sentence").bounding_box()["height"]
        tab.set_viewport_size({"width": 360, "height": 900})  # a phone that is turned
        tab.wait_for_function(f"() => document.querySelector('textarea').clientHeight > {tall}")
        tab.wait_for_function(whole)
        tab.locator(".trouble:not(:empty)").wait_for()  # more subwords than the little model takes
        tab.told.clear()


def test_markup_stays_text(tab: Any) -> None:
    text = "<script>document.title = 'x'</script><img src=x onerror=alert(1)>"
    translate(tab, text, 4, ("margin",))
    tab.get_by_label("Sentence").fill("else")  # then the page says whose translations these are
    assert tab.locator(".source").text_content() == text
    assert tab.locator("img, main script").count() == 0
    assert tab.title() == "anyorder explore"
    tab.evaluate("location.hash = 'text=Hund&model=small&direction=de-en&order=margin:<img src=x>'")  # anyone's link
    tab.locator(".trouble:not(:empty)").wait_for()
    assert "margin:<img src=x>" in tab.locator(".boxes .check").all_text_contents()
    assert tab.locator("img").count() == 0
    assert ["status of 422" in line for line in tab.told] == [True]
    tab.told.clear()


def test_errors_are_one_line(tab: Any) -> None:
    def press(text: str) -> str:
        tab.get_by_label("Sentence").fill(text)
        tab.get_by_role("button", name="Translate").click()
        return tab.locator(".trouble:not(:empty)").text_content()

    assert tab.locator(".trouble").get_attribute("aria-live") == "assertive"
    assert press("") == "Type a sentence first."
    assert press("a" * 401) == "The text has 401 characters, at most 400 are translated."
    assert tab.locator(".counter.over").text_content() == "401 / 400"
    assert tab.told == []
    tab.get_by_label("Sentence").fill("Ж" * 80)
    tab.get_by_role("button", name="Translate").click()
    tab.locator(".trouble", has_text=re.compile(r"subwords, the model has room for 62$")).wait_for()
    assert ["status of 422" in line for line in tab.told] == [True]  # the browser's own note of the answer
    tab.told.clear()
    assert tab.locator("form").get_attribute("aria-busy") == "false"
    translate(tab, orders=("margin",))
    assert tab.locator(".trouble").text_content() == ""
    choose(tab)
    assert press(TEXT) == "Choose at least one order."


def test_six_orders_at_most_and_those_of_the_direction(tab: Any) -> None:
    choose(tab)
    boxes = tab.locator(".boxes input")
    for i in range(6):
        boxes.nth(i).check()
    assert tab.locator(".boxes input:disabled").count() == boxes.count() - 6
    assert tab.locator(".hint").text_content() == "6 at most"
    tab.get_by_label("Direction").select_option("en-de")
    assert tab.get_by_role("checkbox", name="learned", exact=True).count() == 0
    assert tab.get_by_role("checkbox", name="learned:other", exact=True).is_checked()


def test_it_fits_a_telephone_and_everything_has_a_name(tab: Any) -> None:
    tab.emulate_media(color_scheme="dark", reduced_motion="reduce")
    tab.set_viewport_size({"width": 360, "height": 740})
    translate(tab, "Donaudampfschifffahrt " * 3, 24, ("learned", "margin"))
    assert counts(tab) == [24, 24]  # nothing moves by itself
    tab.get_by_text("All candidates").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate(NAMES) == []
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 20, 24)"
