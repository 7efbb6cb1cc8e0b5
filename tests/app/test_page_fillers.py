"""The explorer's page in a real browser for models without a source: infilling, and puzzles as grids."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

import anyorder
from anyorder.app.server import create_app
from tests.app.servers import MASKED, PUZZLES, serving
from tests.app.test_page import NAMES, blank, choose, counts, fill, link_parameters, wait_for_results
from tests.conftest import open_tab

pytestmark = pytest.mark.browser
TEXT = "w1 [MASK] w3 [MASK] [MASK] w7"
PUZZLE, SOLUTION = "0000034010030000", "4132234114233214"
ORDERS = ["margin", "uniform", "left-to-right"]
LINK = f"text={PUZZLE}&model={PUZZLES}&reference={SOLUTION}" + "".join(f"&order={order}" for order in ORDERS)


@pytest.fixture(scope="module")
def origin(chromium: Any, folder: Path, masked_folder: Path) -> Iterator[str]:
    with serving(create_app([str(folder), str(masked_folder), PUZZLES], device="cpu")) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def tab(chromium: Any, origin: str) -> Iterator[Any]:
    with open_tab(chromium, origin) as page:
        page.set_default_timeout(10_000)
        page.emulate_media(reduced_motion="reduce")
        yield page


def open_link(tab: Any, origin: str, link: str) -> None:
    tab.goto(f"{origin}/#{link}")
    wait_for_results(tab)


def test_masks_are_filled_in_several_orders_side_by_side(tab: Any, origin: str, masked_folder: Path) -> None:
    tab.goto(origin)
    wait_for_results(tab)
    with tab.expect_response("**/api/decode"):
        tab.get_by_label("Model").select_option(MASKED)  # an example of its own is filled at once
    assert "[MASK]" in tab.get_by_label("Text", exact=True).input_value()
    for label in ("Direction", "Reference", "Length"):
        assert not tab.get_by_label(label).first.is_visible()
    tab.get_by_label("Text", exact=True).fill("w1 w3 [MASK] [MASK] w7")
    tab.evaluate("document.querySelector('textarea').setSelectionRange(3, 3)")
    tab.get_by_role("button", name="[MASK]").click()
    tab.get_by_label("Text", exact=True).press("Space")
    assert tab.get_by_label("Text", exact=True).input_value() == TEXT
    choose(tab, "learned", "margin", "right-to-left")
    with tab.expect_response("**/api/step"):
        tab.get_by_role("button", name="Fill in").click()
    wait_for_results(tab)
    filler = anyorder.load(masked_folder, device="cpu")
    for i, order in enumerate(["learned", "margin", "right-to-left"]):
        [trajectory] = filler.fill(TEXT, order)
        view = tab.locator(".views .fill").nth(i)
        assert view.locator(".clue .word").all_text_contents() == ["w1", "w3", "w7"]
        assert view.locator(".on .word").all_text_contents() == trajectory.tokens
        assert view.locator(".on .step").all_text_contents() == [str(step) for step in trajectory.steps]
        assert view.locator(".fill-text").text_content() == trajectory.text
    tab.locator("h1").click()
    tab.keyboard.press("Home")
    assert counts(tab) == [0, 0, 0]
    assert tab.locator(".views .clue").count() == 9  # what was given is always there
    view = tab.locator(".views .fill").nth(1)
    view.locator(".token[data-i='3']").hover()
    view.locator(".tip .candidates li").nth(4).wait_for()
    assert view.locator(".scored").count() == 3
    view.locator(".clue").first.hover()
    view.locator(".tip", has_text="given").wait_for()


def test_masks_are_filled_by_hand(tab: Any, origin: str) -> None:
    open_link(tab, origin, "text=w1+[MASK]+w3+[MASK]+[MASK]+w7&model=masked&order=margin&order=uniform")
    assert tab.locator(".compose .blank").count() == 3
    assert not tab.locator(".compose").get_by_label("Length").is_visible()
    blank(tab, 0).evaluate("cell => cell.click()")  # nothing to fill there
    fill(tab, 4)
    tab.get_by_label("Another subword").fill("w12")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".compose .token.given.on[data-i='4']")
    assert blank(tab, 4).locator(".word").text_content() == "w12"
    tab.get_by_role("button", name="Let the order finish").click()
    tab.locator(".views h3", has_text="by hand").wait_for()
    assert counts(tab) == [3, 3, 3]
    assert tab.locator(".views .fill-text").nth(2).text_content().split()[4] == "w12"
    assert "task" not in link_parameters(tab)
    before, look = tab.url, "() => [...document.querySelectorAll('.token .word')].map((e) => e.textContent)"
    words = tab.evaluate(look)
    tab.reload()
    tab.locator(".views h3", has_text="by hand").wait_for()
    assert (tab.url, tab.evaluate(look)) == (before, words)


def test_a_sudoku_fills_up_in_three_orders_side_by_side(tab: Any, origin: str) -> None:
    open_link(tab, origin, LINK)
    views = tab.locator(".views .fill")
    assert views.locator("h3").all_text_contents() == ORDERS
    boxes = [views.nth(i).bounding_box() for i in range(3)]
    assert boxes[0]["y"] == boxes[1]["y"] == boxes[2]["y"]
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    filler = anyorder.load(PUZZLES, device="cpu")
    for i, order in enumerate(ORDERS):
        [answer] = filler.fill(PUZZLE.replace("0", "[MASK]"), order)
        wrong = [str(cell) for cell in range(16) if answer.text[cell] != SOLUTION[cell]]
        view = views.nth(i)
        assert "".join(view.locator(".cells .word").all_text_contents()) == answer.text
        assert "".join(view.locator(".clue .word").all_text_contents()) == "3413"
        marked = view.locator(".wrong").evaluate_all("all => all.map(cell => cell.dataset.i)")
        assert marked == wrong
        done = f"Not solved: {len(wrong)} of 12 cells are wrong" if wrong else "Solved"
        assert view.locator(".fill-text").text_content() == done
        top = [view.locator(f".token[data-i='{cell}']").bounding_box() for cell in (0, 1, 4)]
        assert top[0]["y"] == top[1]["y"] < top[2]["y"]
        assert abs(top[0]["x"] - top[2]["x"]) < 1 < top[1]["x"] - top[0]["x"]
    assert "rgb(220, 220, 214)" in views.first.locator(".clue").first.evaluate("e => getComputedStyle(e).background")
    tab.locator("h1").click()
    tab.keyboard.press("Home")
    for key, expected in [("ArrowRight", 1), ("ArrowRight", 2), ("End", 12)]:
        tab.keyboard.press(key)
        assert counts(tab) == [expected] * 3
    tab.get_by_label("Speed").click()
    tab.locator("h1").click()
    for _ in range(3):
        tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Space")
    tab.get_by_role("button", name="Pause").wait_for()
    tab.locator("output.count", has_text="12 / 12").wait_for()
    assert counts(tab) == [12] * 3
    views.first.locator(".token").nth(0).focus()
    tab.keyboard.press("ArrowDown")  # to the cell below
    assert tab.evaluate("document.activeElement.dataset.i") == "4"


def test_another_puzzle_and_a_digit_by_hand(tab: Any, origin: str) -> None:
    tab.goto(f"{origin}/#{LINK}")
    wait_for_results(tab)
    with tab.expect_response("**/api/puzzle"), tab.expect_response("**/api/decode"):
        tab.get_by_role("button", name="Another puzzle").click()
    wait_for_results(tab)
    text, solution = tab.get_by_label("Puzzle").input_value(), tab.get_by_label("Solution").input_value()
    assert text != PUZZLE
    assert len(text) == len(solution) == 16
    tab.wait_for_function(f"() => location.hash.includes('{text}')")
    cell = text.index("0")
    fill(tab, cell)
    tab.locator(".word-panel", has_text=f"Cell {cell + 1}").wait_for()
    assert not tab.get_by_label("Another subword").is_visible()
    wrong = next(symbol for symbol in "1234" if symbol != solution[cell])
    tab.locator(".word-choice", has_text=re.compile(f"^{wrong}")).click()
    tab.wait_for_function(
        f"() => document.querySelector(\".compose [data-i='{cell}'] .word\").textContent === '{wrong}'"
    )
    tab.get_by_role("button", name="Let the order finish").click()
    tab.locator(".views h3", has_text="by hand").wait_for()
    mine = tab.locator(".views .fill").nth(3)
    assert mine.locator(".fill-text").text_content().startswith("Not solved")
    assert mine.locator(f".wrong[data-i='{cell}']").get_attribute("aria-label").endswith("wrong")
    tab.get_by_label("Puzzle").fill("12")
    tab.get_by_role("button", name="Solve").click()
    tab.locator(".error", has_text="text: 2 characters, expected the 16 cells").wait_for()
    assert ["status of 422" in line for line in tab.messages] == [True]
    tab.messages.clear()


@pytest.mark.parametrize("link", [LINK, f"text={TEXT.replace(' ', '+')}&model={MASKED}&order=margin&order=uniform"])
def test_it_fits_a_phone(tab: Any, origin: str, link: str) -> None:
    tab.set_viewport_size({"width": 375, "height": 740})
    open_link(tab, origin, link)
    boxes = [view.bounding_box() for view in tab.locator(".views .fill").all()]
    assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(boxes))
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 375 for box in boxes)
    tab.get_by_text("All candidates").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    assert tab.evaluate(NAMES) == []
