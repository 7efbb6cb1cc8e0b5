"""The explorer's page in a real browser with a real server. Every test also fails on a console message or on a request to
another origin (see `open_tab`)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

from anyorder.app.security import AccessToken
from anyorder.app.server import create_app
from anyorder.decoder import load
from anyorder.evaluation.bleu import sentence_bleu
from tests.app.servers import serving
from tests.conftest import open_tab

pytestmark = pytest.mark.browser
TEXT = "Der Hund sieht das Haus."
NAMES = """() => [...document.querySelectorAll("button, input, select, textarea, [role=group], [role=img]")]
    .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)"""


@pytest.fixture(scope="module")
def origin(chromium: Any, folder: Path) -> Iterator[str]:
    """The address of a running explorer."""
    with serving(create_app([str(folder)], device="cpu")) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def tab(chromium: Any, origin: str) -> Iterator[Any]:
    with open_tab(chromium, origin) as page:
        page.set_default_timeout(10_000)
        page.goto(origin)
        wait_for_results(page)
        yield page


def wait_for_results(tab: Any) -> None:
    """Until the runs, and the sentence to fill by hand, are shown."""
    tab.wait_for_selector("form.query-form:not([aria-busy=true])")
    tab.wait_for_selector(".compose:not([aria-busy]) .token")


def choose(tab: Any, *orders: str) -> None:
    checked = tab.locator(".boxes input:checked")
    for _ in range(checked.count()):
        checked.first.click()
    for order in orders:
        tab.get_by_role("checkbox", name=order, exact=True).check()


def translate(
    tab: Any, text: str = TEXT, length: int | None = 6, orders: tuple[str, ...] = ("learned", "margin")
) -> None:
    """Fills the form and submits it."""
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


def fill(tab: Any, *positions: int) -> None:
    for position in positions:
        blank(tab, position).click()
        tab.wait_for_selector(f".compose .token.on[data-i='{position}']")


def link_parameters(tab: Any) -> dict[str, list[str]]:
    """The parameters after # in the address."""
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
        [trajectory] = load(folder, device="cpu").translate([TEXT], "de-en", order, length="fixed:6")
        view = tab.locator(".views .fill").nth(i)
        assert view.locator(".step").all_text_contents() == [str(step) for step in trajectory.steps]
        assert view.locator(".fill-text").text_content() == trajectory.text
    tab.locator("h1").click()
    for key, expected in [("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 6)]:
        tab.keyboard.press(key)
        assert counts(tab) == [expected] * 2, key
    tab.get_by_label("Speed").click()
    tab.keyboard.press("Home")
    tab.locator("h1").click()
    tab.keyboard.press("Space")
    tab.locator("output.count", has_text="6 / 6").wait_for()


def test_hovering_a_position_shows_candidates_and_the_order_s_distribution(tab: Any) -> None:
    translate(tab)
    tab.locator("h1").click()
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    queries: list[Any] = []
    tab.on("request", lambda request: queries.append(request.post_data_json))
    view = tab.locator(".views .fill").first
    masked = view.locator(".token:not(.on)")
    masked.nth(0).hover()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert "chosen by the policy" in view.locator(".tip").text_content()
    assert view.locator(".scored").count() == 2
    assert view.locator(".scored.next").count() == 1
    shares = [int(view.locator(".scored").nth(i).get_attribute("data-score").rstrip("%")) for i in (0, 1)]
    assert 99 <= sum(shares) <= 101
    masked.nth(1).hover()
    view.locator(".tip", has_text=f"position{int(masked.nth(1).get_attribute('data-i')) + 1} of 6").wait_for()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert len(queries) == 1  # the same state is requested once
    assert len(queries[0]["filled"]) == 4
    assert queries[0]["order"] == "learned"
    on = view.locator(".token.on").first
    on.hover()  # a filled token: its candidates when it was written
    view.locator(".tip dt", has_text="token").wait_for()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert view.locator(".tip .candidates .word").first.text_content() == view.locator(".tip dd").first.text_content()
    tab.keyboard.press("ArrowLeft")
    assert view.locator(".scored").count() == 0
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
    fill(tab, 4, 1)
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
    assert link_parameters(tab)["filled"] == ["5.6"]
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
    fill(tab, 2, 6)
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
        other.goto(f"{origin}/#text=Ein+Hund&model=none&task=de-en&order=outer-in:stride%3D2&length=4")
        other.locator(".error", has_text="This server has no model none; small is used.").wait_for()
        assert other.locator(".views h3").all_text_contents() == ["outer-in:stride=2"]


def test_a_long_sentence_from_a_link_is_seen_whole(chromium: Any, origin: str) -> None:
    whole = "() => { const box = document.querySelector('textarea'); return box.scrollHeight <= box.clientHeight; }"
    with open_tab(chromium, origin) as tab:
        tab.set_viewport_size({"width": 700, "height": 900})
        tab.goto(f"{origin}/#text={'Ein+Hund+und+noch+' * 7}ein+Hund&model=small&task=de-en")
        tab.reload()
        tab.get_by_label("Sentence").wait_for()
        tab.wait_for_function(whole)
        tall = tab.get_by_label("Sentence").bounding_box()["height"]
        tab.set_viewport_size({"width": 360, "height": 900})  # a phone that is turned
        tab.wait_for_function(f"() => document.querySelector('textarea').clientHeight > {tall}")
        tab.wait_for_function(whole)
        tab.locator(".error:not(:empty)").wait_for()  # more subwords than the little model takes
        tab.messages.clear()


def test_an_example_fills_up_at_the_start(chromium: Any, origin: str) -> None:
    """A newcomer sees a sentence in four orders, with its reference, and the form stays in sight."""
    with open_tab(chromium, origin) as tab:
        tab.set_default_timeout(10_000)
        tab.goto(origin)
        tab.get_by_role("button", name="Pause").wait_for()  # it plays
        assert tab.get_by_label("Sentence").input_value().startswith("Guten Morgen")
        assert tab.get_by_label("Reference").input_value().startswith("Good morning")
        assert tab.locator(".views h3").all_text_contents() == ["learned", "max-prob", "left-to-right", "outer-in"]
        assert tab.locator(".views dt", has_text="BLEU").count() == 4
        assert tab.get_by_label("Length").first.input_value() == "candidates:4"
        assert tab.get_by_label("Schedule", exact=True).input_value() == "one"
        assert tab.evaluate("scrollY") == 0
        wait_for_results(tab)
        tab.get_by_label("Direction").select_option("en-de")  # the example follows the language
        assert tab.get_by_label("Sentence").input_value().startswith("Good morning")
        tab.get_by_role("button", name="Example").click()
        assert tab.get_by_label("Sentence").input_value().startswith("The new house")
        assert tab.get_by_label("Reference").input_value().startswith("Das neue Haus")
        tab.keyboard.type("!")  # the reader's own sentence has no reference
        assert tab.get_by_label("Reference").input_value() == ""
        tab.get_by_label("Direction").select_option("de-en")
        assert (
            tab.get_by_label("Sentence").input_value() == "The new house that we saw yesterday is far too expensive.!"
        )


def test_stride_schedule_and_reference(tab: Any, folder: Path) -> None:
    tab.get_by_label("Reference").fill("The dog sees the house.")
    tab.get_by_label("Stride of outer-in").fill("2")
    tab.get_by_label("Schedule", exact=True).select_option("2")
    translate(tab, TEXT, 7, ("outer-in", "margin"))
    assert tab.locator(".views h3").all_text_contents() == ["outer-in:stride=2", "margin"]
    tab.locator("h1").click()
    tab.keyboard.press("End")
    for i, order in enumerate(["outer-in:stride=2", "margin"]):
        [trajectory] = load(folder, device="cpu").translate(TEXT, "de-en", order, schedule=2, length="fixed:7")
        view = tab.locator(".views .fill").nth(i)
        assert view.locator(".token .step").all_text_contents() == [str(step) for step in trajectory.steps]
        bleu = sentence_bleu(trajectory.text, "The dog sees the house.")
        assert view.locator("dl").first.text_content().startswith(f"BLEU{bleu:.1f}")
        assert view.locator("dl").first.text_content().endswith("steps4")
    assert link_parameters(tab)["schedule"] == ["2"]
    # Hovering shows what the model saw when it filled two positions at once.
    view = tab.locator(".views .fill").nth(1)
    for i in range(7):
        tab.locator("h1").hover()
        view.locator(f".token[data-i='{i}']").hover()
        view.locator(".tip", has_text=f"position{i + 1} of 7").wait_for()
        view.locator(".tip .candidates li").nth(4).wait_for()
        assert (
            view.locator(".tip .candidates .word").first.text_content() == view.locator(".tip dd").first.text_content()
        )
    tab.get_by_role("button", name="Let the order finish").click()
    tab.locator(".views h3", has_text="by hand").wait_for()
    assert "BLEU" in tab.locator(".views .fill").nth(2).locator("dl").first.text_content()
    tab.get_by_label("Stride of outer-in").fill("1")
    tab.get_by_label("Reference").fill("")
    translate(tab, TEXT, 7, ("outer-in",))
    assert tab.locator(".views h3").all_text_contents() == ["outer-in", "by hand"]
    assert tab.locator(".views dt", has_text="BLEU").count() == 0


def test_any_schedule_and_a_revision(tab: Any, folder: Path) -> None:
    """Offered by name, or typed and checked by the server; a link keeps them, and a revision is seen step by step."""
    schedule, other = tab.get_by_label("Schedule", exact=True), tab.get_by_label("Another schedule")
    groups = schedule.locator("optgroup").evaluate_all("all => all.map(group => group.label)")
    assert groups == ["Positions per step", "Number of steps", "Where the model is confident", "Block by block"]
    assert schedule.locator("option[value='cosine:8']").text_content() == "cosine:8 – eight steps, small ones first"
    assert not other.is_visible()
    schedule.select_option("other")
    assert other.evaluate("input => input === document.activeElement")
    tab.keyboard.type("cosin:3")
    tab.keyboard.press("Control+Enter")  # nothing is decoded
    note = tab.locator("#schedule-note.wrong")
    note.wait_for()
    assert note.text_content().startswith("unknown schedule 'cosin': did you mean 'cosine'?")
    assert (other.get_attribute("aria-invalid"), other.get_attribute("aria-describedby")) == ("true", "schedule-note")
    assert tab.locator(".error").text_content() == ""
    assert ["status of 422" in line for line in tab.messages] == [True]
    tab.messages.clear()
    tab.set_viewport_size({"width": 360, "height": 740})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate(NAMES) == []
    tab.set_viewport_size({"width": 1280, "height": 720})
    other.fill("linear:3")
    assert tab.locator("#schedule-note").text_content() == ""
    translate(tab, TEXT, 6, ("margin",))
    assert tab.locator("#schedule-note").text_content().startswith("T steps; after step t")
    assert link_parameters(tab)["schedule"] == ["linear:3"]
    tab.locator("output.count", has_text="3 / 3").wait_for()

    tab.emulate_media(reduced_motion="reduce")
    tab.get_by_label("Revision", exact=True).select_option("mask-predict:4")
    assert other.input_value() == "linear:3"  # the reader's own choice stays
    tab.get_by_label("Revision", exact=True).select_option("none")
    schedule.select_option("one")
    tab.get_by_label("Revision", exact=True).select_option("mask-predict:4")
    assert schedule.input_value() == "steps:1"
    assert tab.locator("#schedule-note").text_content() == "as mask-predict:4 was published"
    translate(tab, "Ein Hund und das Haus.", 6, ("margin",))
    [trajectory] = load(folder, device="cpu").translate(
        "Ein Hund und das Haus.", "de-en", "margin", revision="mask-predict:4", length="fixed:6"
    )
    assert trajectory.writes is not None
    link = link_parameters(tab)
    assert (link["schedule"], link["revision"]) == (["steps:1"], ["mask-predict:4"])
    tab.reload()
    wait_for_results(tab)
    assert link_parameters(tab) == link
    assert tab.get_by_label("Revision", exact=True).input_value() == "mask-predict:4"
    view = tab.locator(".views .fill")
    shown = "view => [...view.querySelectorAll('.token')].map(t => [t.firstChild.textContent, t.lastChild.textContent])"
    tab.locator("h1").click()
    for now in (4, 3, 2, 1):
        newest = {write.position: write for write in trajectory.writes if write.step <= now}
        expected = [[newest[i].token.removesuffix("@@"), str(newest[i].step)] for i in range(6)]
        assert view.evaluate(shown) == expected
        assert view.locator(".again").count() == sum(write.step > 1 for write in newest.values())
        tab.keyboard.press("ArrowLeft")
    assert counts(tab) == [0]
    tab.get_by_label("Revision", exact=True).select_option("none")
    assert schedule.input_value() == "one"
    tab.get_by_label("Revision", exact=True).select_option("other")
    tab.keyboard.type("refine:2")
    with tab.expect_request("**/api/decode") as sent:
        tab.keyboard.press("Control+Enter")
    assert (sent.value.post_data_json["schedule"], sent.value.post_data_json["revision"]) == ("steps:1", "refine:2")
    wait_for_results(tab)


def test_the_word_is_chosen_by_hand_too(tab: Any, chromium: Any, origin: str) -> None:
    translate(tab)
    assert not tab.locator(".word-panel").is_visible()
    fill(tab, 4, 1)
    panel = tab.locator(".word-panel")
    panel.locator("text=Word at position 2").wait_for()
    first, second = panel.locator(".word-choice").nth(0), panel.locator(".word-choice").nth(1)
    best, other = (choice.evaluate("button => button.firstChild.textContent") for choice in (first, second))
    assert first.get_attribute("aria-pressed") == "true"
    assert blank(tab, 1).locator(".word").text_content() == best.removesuffix("@@")
    second.click()
    tab.wait_for_selector(".compose .token.given[data-i='1']")
    assert blank(tab, 1).locator(".word").text_content() == other.removesuffix("@@")
    assert blank(tab, 1).get_attribute("aria-label").endswith("chosen by you")
    assert link_parameters(tab)["token"] == [f"2:{other}"]
    blank(tab, 4).click()  # a token that is filled: now its word can be changed
    panel.locator("text=Word at position 5").wait_for()
    tab.get_by_label("Another subword").fill("dog")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".compose .token.given[data-i='4']")
    assert blank(tab, 4).locator(".word").text_content() == "dog"
    assert tab.locator(".compose .given").count() == 2
    assert tab.locator(".compose .on .step").all_text_contents() == ["2", "1"]
    tab.get_by_text("All candidates").click()
    card = tab.locator(".card", has_text="Position 1").locator("li button").nth(2)
    word = card.text_content()
    card.click()  # a position and its word at once
    tab.wait_for_selector(".compose .token.given[data-i='0']")
    assert blank(tab, 0).locator(".word").text_content() == word.removesuffix("@@")
    with open_tab(chromium, origin) as linked:
        linked.set_default_timeout(10_000)
        linked.goto(tab.url)
        linked.wait_for_selector(".compose .given >> nth=2")
        look = "() => [...document.querySelectorAll('.token .word, .token .step')].map((e) => e.textContent)"
        assert linked.evaluate(look) == tab.evaluate(look)
        assert linked.url == tab.url
        blank(linked, 1).click()  # the candidates of an earlier step are requested
        linked.locator(".word-choice", has_text=other).first.wait_for()
        linked.locator(".word-choice").first.click()  # back to the model's own choice
        linked.wait_for_selector(".compose .token.on:not(.given)[data-i='1']")
        assert linked.locator(".compose .given").count() == 2
    tab.get_by_label("Another subword").fill("nosuchword")
    tab.get_by_role("button", name="Write").click()
    tab.locator(".error", has_text="token 'nosuchword': the model's vocabulary has no such subword").wait_for()
    assert ["status of 422" in line for line in tab.messages] == [True]
    tab.messages.clear()
    assert blank(tab, 0).locator(".word").text_content() == word.removesuffix("@@")
    tab.get_by_role("button", name="Let the order finish").click()
    tab.locator(".views h3", has_text="by hand").wait_for()
    mine = tab.locator(".views .fill").nth(2)
    assert mine.locator(".given").count() == 3
    mine.locator(".token[data-i='4']").hover()
    assert "chosen byyou" in mine.locator(".tip").text_content()
    mine.locator(".tip .candidates li").nth(4).wait_for()


def test_old_links_and_links_with_every_field(chromium: Any, origin: str) -> None:
    old = "text=Ein+Hund&model=small&task=de-en&length=predicted&order=margin&size=5&filled=3.1&advice=margin"
    new = (
        "text=Ein+Hund&model=small&task=de-en&length=6&schedule=threshold%3A0.3&reference=A+dog"
        "&order=outer-in%3Astride%3D3&order=margin&size=5&filled=3.1&token=1%3Adog&advice=margin"
    )
    with open_tab(chromium, origin) as tab:
        tab.set_default_timeout(10_000)
        for link in (old, new):
            tab.goto(f"{origin}/#{link}")
            tab.reload()
            tab.wait_for_selector(".compose .on >> nth=1")
            assert tab.url == f"{origin}/#{link}"
        assert tab.get_by_label("Stride of outer-in").input_value() == "3"
        assert tab.get_by_role("checkbox", name="outer-in", exact=True).is_checked()
        assert tab.get_by_label("Another schedule").input_value() == "threshold:0.3"
        assert tab.get_by_label("Reference").input_value() == "A dog"
        assert blank(tab, 0).locator(".word").text_content() == "dog"


def test_markup_stays_text(tab: Any) -> None:
    text = "<script>document.title = 'x'</script><img src=x onerror=alert(1)>"
    translate(tab, text, 4, ("margin",))
    tab.get_by_label("Sentence").fill("else")  # then the page shows which sentence the results translate
    assert tab.locator(".source").text_content() == text
    assert tab.locator("img, main script").count() == 0
    assert tab.title() == "anyorder explore"
    tab.evaluate("location.hash = 'text=Hund&model=small&task=de-en&order=margin:<img src=x>'")  # anyone's link
    tab.locator(".error:not(:empty)").wait_for()
    assert "margin:<img src=x>" in tab.locator(".boxes .check").all_text_contents()
    assert tab.locator("img").count() == 0
    assert ["status of 422" in line for line in tab.messages] == [True]
    tab.messages.clear()


def test_errors_are_one_line(tab: Any) -> None:
    def press(text: str) -> str:
        tab.get_by_label("Sentence").fill(text)
        tab.get_by_role("button", name="Translate").click()
        return tab.locator(".error:not(:empty)").text_content()

    assert tab.locator(".error").get_attribute("aria-live") == "assertive"
    assert press("") == "Type a sentence first."
    assert press("a" * 401) == "The text has 401 characters; at most 400 are translated."
    assert tab.locator(".counter.over").text_content() == "401 / 400"
    assert tab.messages == []
    tab.get_by_label("Sentence").fill("Ж" * 80)
    tab.get_by_role("button", name="Translate").click()
    tab.locator(".error", has_text=re.compile(r"subwords; the model has room for 62$")).wait_for()
    assert ["status of 422" in line for line in tab.messages] == [True]  # the browser's own note of the answer
    tab.messages.clear()
    assert tab.locator("form.query-form").get_attribute("aria-busy") == "false"
    translate(tab, orders=("margin",))
    assert tab.locator(".error").text_content() == ""
    choose(tab)
    assert press(TEXT) == "Choose at least one order."


def test_six_orders_at_most_and_those_of_the_direction(tab: Any) -> None:
    choose(tab)
    boxes = tab.locator(".boxes input[type=checkbox]")
    for i in range(6):
        boxes.nth(i).check()
    assert tab.locator(".boxes input:disabled").count() == boxes.count() - 6
    assert tab.locator(".hint").text_content() == "6 at most"
    tab.get_by_label("Direction").select_option("en-de")
    assert tab.get_by_role("checkbox", name="learned", exact=True).count() == 0
    assert tab.get_by_role("checkbox", name="learned:other", exact=True).is_checked()


def test_it_fits_a_phone_and_everything_has_an_accessible_name(tab: Any) -> None:
    tab.emulate_media(color_scheme="dark", reduced_motion="reduce")
    tab.set_viewport_size({"width": 360, "height": 740})
    translate(tab, "Donaudampfschifffahrt " * 3, 24, ("learned", "margin"))
    assert counts(tab) == [24, 24]  # nothing moves by itself
    tab.get_by_text("All candidates").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate(NAMES) == []
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 20, 24)"


def test_a_link_with_a_token(chromium: Any, folder: Path) -> None:
    """The page works after the token has left the address, also after a reload, and no copied link holds it."""
    token = AccessToken()
    with serving(create_app([str(folder)], device="cpu", token=token)) as port:
        origin = f"http://127.0.0.1:{port}"
        with open_tab(chromium, origin) as tab:
            tab.set_default_timeout(10_000)
            tab.goto(f"{origin}/?token={token.text}#text=Ein+Hund&model=small&task=de-en&length=6&order=margin")
            wait_for_results(tab)
            assert tab.url.startswith(f"{origin}/#text=Ein+Hund")
            tab.reload()
            wait_for_results(tab)


def test_the_orders_at_the_start(tab: Any) -> None:
    names = tab.locator(".boxes .check:has(input:checked)").all_text_contents()
    assert names == ["learned", "max-prob", "left-to-right", "outer-in"]
