"""The report in a real browser. Every test also fails on a console message or a request (see the fixture `tab`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import make_analysis, make_answers, make_systems, revised, trajectory

pytestmark = pytest.mark.browser
Opened = Callable[..., Any]
NAMES = """() => [...document.querySelectorAll("button, input, select, [role=listbox], [role=option], [role=tabpanel], [role=img]")]
    .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length || e.textContent.trim()))
    .map((e) => e.outerHTML)"""


def counts(tab: Any) -> list[int]:
    """Tokens filled in each view."""
    return tab.eval_on_selector_all(".fill", "all => all.map(view => view.querySelectorAll('.token.on').length)")


def rows(tab: Any) -> list[str]:
    return tab.eval_on_selector_all(
        ".row", "all => all.sort((a, b) => a.offsetTop - b.offsetTop).map(r => r.querySelector('b').textContent)"
    )


def sort_by(tab: Any, text: str) -> None:
    tab.get_by_label("Sort").select_option(label=text)


def test_a_sentence_in_every_order_side_by_side(opened: Opened) -> None:
    tab = opened(make_systems(5), make_analysis(make_systems(5)), [f"reference {i}" for i in range(5)])
    assert tab.locator(".fill h3").all_text_contents() == ["order-0", "order-1", "order-2"]
    assert tab.locator(".source").text_content() == "Satz Nummer 1"
    assert "reference 0" in tab.locator(".reference").text_content()
    assert tab.locator("#about").text_content() == "5 sentences · 3 orders"
    first, second = (tab.locator(".fill").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] < second["x"]
    tab.get_by_role("checkbox", name="order-1").uncheck()
    assert tab.locator(".fill h3").all_text_contents() == ["order-0", "order-2"]


def test_keys_step_through_the_sentence(opened: Opened) -> None:
    run = trajectory("Quelle", ["a", "b", "c", "d"], [2, 1, 3, 3])
    tab = opened({"one": [run], "two": [trajectory("Quelle", ["a", "b", "c", "d"], [1, 2, 3, 4])]})
    assert counts(tab) == [4, 4]
    for key, expected in [("Home", [0, 0]), ("ArrowRight", [1, 1]), ("ArrowRight", [2, 2]), ("ArrowRight", [4, 3]),
                          ("ArrowRight", [4, 4]), ("ArrowRight", [4, 4]), ("ArrowLeft", [4, 3]), ("End", [4, 4])]:  # fmt: skip
        tab.keyboard.press(key)
        assert counts(tab) == expected, key
    assert tab.locator("output").text_content() == "4 / 4"


def test_the_step_is_a_number_and_not_only_a_color(opened: Opened) -> None:
    tab = opened({"one": [trajectory("Quelle", ["a", "b", "c"], [3, 1, 2])]})
    assert tab.locator(".token .step").all_text_contents() == ["3", "1", "2"]
    assert tab.locator(".token").nth(0).get_attribute("aria-label") == "a, position 1, step 3"
    tab.keyboard.press("Home")
    assert tab.locator(".token").nth(0).get_attribute("aria-label") == "position 1, masked"
    assert not tab.locator(".token .word").nth(0).is_visible()


def test_play_runs_to_the_end_and_says_so(opened: Opened) -> None:
    tab = opened({"one": [trajectory("Quelle", list("abcdef"), [1, 2, 3, 4, 5, 6])]})
    tab.get_by_label("Speed").click()
    tab.locator("h1").click()
    tab.keyboard.press("Space")
    assert "Playing from step 0 of 6" in tab.locator("[aria-live]").text_content()
    assert tab.get_by_role("button", name="Pause").is_visible()
    tab.locator("output", has_text="6 / 6").wait_for()
    assert "Paused at step 6 of 6" in tab.locator("[aria-live]").text_content()
    tab.get_by_role("button", name="Play").click()
    tab.keyboard.press("ArrowLeft")  # stepping by hand stops it
    assert tab.get_by_role("button", name="Play").is_visible()


def test_slider_and_tokens_go_to_a_step(opened: Opened) -> None:
    tab = opened(
        {
            "one": [trajectory("Quelle", list("abcd"), [4, 3, 2, 1])],
            "two": [trajectory("Quelle", list("abcd"), [1, 2, 3, 4])],
        }
    )
    tab.get_by_role("slider", name="Step").fill("1")
    assert counts(tab) == [1, 1]
    tab.locator(".fill").nth(0).locator(".token").nth(1).click()
    assert counts(tab) == [3, 3]
    assert tab.locator("output").text_content() == "3 / 4"


def test_arrows_inside_a_sentence_move_between_tokens(opened: Opened) -> None:
    tab = opened({"one": [trajectory("Quelle", list("abcd"), [4, 3, 2, 1])]})
    tab.locator(".token").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.i") == "2"
    assert counts(tab) == [4]
    tab.keyboard.press("Enter")
    assert counts(tab) == [2]


def test_subwords_stand_together(opened: Opened) -> None:
    tab = opened(
        {
            "one": [
                trajectory(
                    "Quelle", ["accoun@@", "tability", "is", "Indi@@", "an@@", "a", "x@@"], [1, 2, 3, 4, 5, 6, 7]
                )
            ]
        }
    )
    words = tab.eval_on_selector_all(
        ".joined", "all => all.map(w => [...w.querySelectorAll('.word')].map(t => t.textContent))"
    )
    assert words == [["accoun", "tability"], ["is"], ["Indi", "an", "a"], ["x"]]
    left, right = (tab.locator(".token").nth(i).bounding_box() for i in (0, 1))
    assert right["x"] - (left["x"] + left["width"]) <= 1.5


def test_brackets_on_the_page_follow_the_step(opened: Opened) -> None:
    run = trajectory("Quelle", ["a", "b@@", "c", "d"], [1, 2, 4, 3])
    tab = opened({"one": [run]})
    assert tab.locator(".fill-brackets").text_content() == "[a b@@] {c d}"
    tab.keyboard.press("ArrowLeft")
    assert tab.locator(".fill-brackets").text_content() == "[a b@@] __ d"
    tab.get_by_role("checkbox", name="brackets").uncheck()
    tab.get_by_role("checkbox", name="arcs").uncheck()
    assert tab.locator(".fill-brackets, .arcs").filter(visible=True).count() == 0


def test_one_arc_a_jump(opened: Opened) -> None:
    tab = opened({"one": [trajectory("Quelle", list("abcde"), [1, 3, 5, 4, 2])]})
    assert tab.locator(".arcs path:not(.off)").count() == 4
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".arcs path:not(.off)").count() == 1
    assert tab.locator(".arcs circle:not(.off)").count() == 2


def test_script_in_a_sentence_stays_text(opened: Opened) -> None:
    evil = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    run = trajectory(evil, [evil, "b"], [1, 2], order=evil)
    analysis = make_analysis({evil: [run]})
    analysis["notes"] = [evil]
    tab = opened({evil: [run]}, analysis, [evil], evil)
    assert tab.locator(".source").text_content() == evil
    assert tab.locator(".row-text").text_content() == evil
    assert tab.locator(".token .word").nth(0).text_content() == evil
    assert tab.locator("h1").text_content() == tab.title() == evil
    tab.locator(".token").nth(0).hover()
    assert evil in tab.locator(".tip").text_content()
    tab.get_by_role("tab", name="Corpus").click()
    assert evil in tab.locator(".panel .name").nth(0).text_content()
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("main img, main script").count() == 0


def test_search_finds_source_and_translation(opened: Opened) -> None:
    systems = {
        "one": [
            trajectory(f"Quelle {i}", ["Bun@@", "des@@", "tag"] if i == 7 else ["x"], [1, 2, 3] if i == 7 else [1])
            for i in range(40)
        ]
    }
    tab = opened(systems, None, [f"reference {i}" for i in range(40)])
    box = tab.get_by_label("Search sentences")
    box.fill("bundestag")
    assert rows(tab) == ["8"]
    assert tab.locator(".found").text_content() == "1 of 40"
    box.fill("QUELLE 3")
    assert rows(tab)[:3] == ["4", "31", "32"]
    box.fill("reference 39")
    assert rows(tab) == ["40"]
    box.fill("nowhere")
    assert rows(tab) == []
    box.fill("")
    assert rows(tab)[0] == "1"


def test_where_one_order_beats_another_most(opened: Opened) -> None:
    systems = make_systems(30)
    analysis = make_analysis(systems)
    bleu = analysis["per_sentence"]["sentence bleu"]
    tab = opened(systems, analysis)
    sort_by(tab, "A beats B most")
    assert rows(tab)[0] == str(max(range(30), key=lambda i: bleu[0][i] - bleu[1][i]) + 1)
    tab.get_by_label("A", exact=True).select_option(label="order-2")
    best = sorted(range(30), key=lambda i: bleu[1][i] - bleu[2][i])
    assert rows(tab)[:3] == [str(i + 1) for i in best[:3]]
    tab.get_by_label("by", exact=True).select_option(label="mean log-probability")
    likely = [[systems[name][i].mean_logprob for name in ("order-2", "order-1")] for i in range(30)]
    assert rows(tab)[0] == str(max(range(30), key=lambda i: round(likely[i][0] - likely[i][1], 6)) + 1)
    tab.locator(".row").nth(0).click()
    assert tab.locator(".row[aria-selected=true]").count() == 1


def test_other_ways_to_sort(opened: Opened) -> None:
    same, apart = [1, 2, 3, 4], [4, 3, 2, 1]
    pairs = [
        (same, same),
        (same, apart),
        (same, [2, 1, 3, 4]),
        ([1, 2], [1, 2]),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
    ]
    systems = {
        name: [trajectory(f"{i}", ["x"] * len(p[k]), p[k]) for i, p in enumerate(pairs)]
        for k, name in enumerate(("one", "two"))
    }
    analysis = make_analysis(systems)
    analysis["per_sentence"]["label"] = [[4, 1, 0, 1, 2], [0, 0, 0, 0, 1]]
    tab = opened(systems, analysis)
    for way, expected in [("orders disagree most", "23145"), ("orders agree most", "14532"), ("longest first", "51234"),
                          ("shortest first", "41235"), ("label", "32451"), ("as given", "12345")]:  # fmt: skip
        sort_by(tab, way)
        assert "".join(rows(tab)) == expected, way


@pytest.mark.parametrize(
    ("index", "steps", "expected"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7, 8], "left-to-right"),
        (1, [1, 1, 2, 2], "left-to-right"),
        (1, [4, 3, 1, 2, 5, 6, 7, 8], "mostly left-to-right"),
        (2, [4, 3, 2, 1], "right-to-left"),
        (2, [4, 3, 1, 2], "mostly right-to-left"),
        (0, [1, 3, 5, 4, 2], "outer-to-inner"),
        (0, [1, 3, 4, 5, 2], "outer-to-inner"),
        (0, [1, 4, 3, 5, 2], "mostly outer-to-inner"),
        (3, [5, 3, 1, 2, 4], "inner-to-outer"),
        (3, [5, 2, 1, 4, 3], "mostly inner-to-outer"),
        (4, [2, 1, 3], "other"),
    ],
)
def test_a_label_says_whether_an_order_only_leans_that_way(
    opened: Opened, index: int, steps: list[int], expected: str
) -> None:
    systems = {"one": [trajectory("a", ["x"] * len(steps), steps)]}
    analysis = make_analysis(systems)
    analysis["per_sentence"]["label"] = [[index]]
    assert opened(systems, analysis).locator(".views .note").text_content() == expected


def test_a_long_list_draws_only_the_visible_rows(opened: Opened) -> None:
    tab = opened(make_systems(3000, 1))
    assert tab.locator(".row").count() < 40
    tab.locator(".list").evaluate("list => list.scrollTop = list.scrollHeight")
    tab.locator(".row:has(b:text-is('3000'))").click()
    assert tab.locator(".source").text_content() == "Satz Nummer 3000"
    assert tab.locator(".row").count() < 40
    tab.keyboard.press("ArrowUp")
    assert tab.locator(".source").text_content() == "Satz Nummer 2999"
    tab.keyboard.press("Home")  # of the sentence, not of the list
    tab.keyboard.press("ArrowRight")
    assert counts(tab) == [1]
    tab.keyboard.press("PageUp")
    assert tab.locator(".source").text_content() != "Satz Nummer 2999"
    tab.keyboard.press("PageDown")
    assert tab.locator(".source").text_content() == "Satz Nummer 2999"
    tab.locator("h1").click()
    tab.keyboard.press("j")
    assert tab.locator(".source").text_content() == "Satz Nummer 3000"


def test_the_address_remembers_sentence_step_and_view(opened: Opened) -> None:
    tab = opened(make_systems(9), make_analysis(make_systems(9)), address="#sentence=4&step=2")
    assert tab.locator(".source").text_content() == "Satz Nummer 4"
    assert counts(tab) == [2, 2, 2]
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("k")
    tab.get_by_role("tab", name="Corpus").click()
    tab.wait_for_timeout(400)
    assert tab.url.split("#")[1] == "sentence=3&view=corpus"
    opened(make_systems(9), address="#sentence=2.5&step=1.5")
    opened(make_systems(9), address="#sentence=400&step=x&view=nothing")
    assert tab.locator(".source").text_content() == "Satz Nummer 9"


def test_a_small_difference_is_not_rounded_to_none(opened: Opened) -> None:
    systems = make_systems(6)
    analysis = make_analysis(systems)
    difference = {"difference": -0.000939, "difference_low": -0.001835, "difference_high": -0.000218}
    analysis["systems"][1]["figures"]["edge share"] = {**analysis["systems"][1]["figures"]["edge share"], **difference}
    tab = opened(systems, analysis)
    tab.get_by_role("tab", name="Corpus").click()
    titles = tab.locator("table.figures td").evaluate_all("all => all.map((cell) => cell.title)")
    assert [title for title in titles if "difference to the first system −0.0009 [−0.0018, −0.0002]" in title]
    hovers = tab.locator(".value").evaluate_all("all => all.map((cell) => cell.title)")
    assert [title for title in hovers if "difference to the first system −0.0009 [−0.0018, −0.0002]" in title]


def test_the_corpus_shows_figures_with_intervals_and_null(opened: Opened) -> None:
    systems = make_systems(6)
    tab = opened(systems, make_analysis(systems))
    tab.get_by_role("tab", name="Corpus").click()
    assert tab.locator(".block h2").all_text_contents() == [
        "Metrics",
        "Position × step",
        "Labels",
        "Jumps",
        "Parts of speech",
    ]
    panel = tab.locator(".panel", has_text="edge share").first
    assert (
        panel.locator(".dot").count() == panel.locator(".interval").count() == panel.locator(".null-band").count() == 3
    )
    assert (
        panel.locator("[role=img]").nth(0).get_attribute("aria-label") == "order-0: 0.50 [0.45, 0.55], by chance 0.30"
    )
    assert tab.locator(".heat").count() == 3
    assert tab.locator(".heat").nth(0).locator("rect").count() == 400
    cell = tab.locator("table tr", has_text="mean jump").locator("td").nth(0)
    assert not cell.is_visible()  # the charts show the metrics already
    tab.get_by_text("All numbers as a table").click()
    assert cell.is_visible()
    assert cell.text_content() == "3.25[0.45, 0.55]null 0.30"
    tab.locator(".heat").nth(0).hover(position={"x": 2, "y": 2})
    assert tab.locator(".readout").nth(0).text_content() == "step 0–5 %, position 0–5 %: 5.0 %"


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        {"systems": None, "per_sentence": None},
        {"systems": [{"name": "order-0"}, None]},
        {
            "systems": [
                {
                    "name": "order-0",
                    "figures": None,
                    "labels": None,
                    "positions": None,
                    "jumps": None,
                    "by_tag": None,
                    "signature": None,
                }
            ]
        },
        {
            "systems": [
                {
                    "name": "order-0",
                    "figures": {"edge share": None, "mean jump": {"value": None}},
                    "positions": {"bins": 20, "share": None},
                    "jumps": {},
                }
            ]
        },
        {
            "systems": [{"name": "order-0", "figures": {"edge share": {"value": 0.5}}}],
            "per_sentence": {"sentence bleu": [[None] * 4] * 3, "label": [[1]], "other": None},
        },
    ],
)
def test_parts_of_an_analysis_may_be_missing(broken: Any, opened: Opened) -> None:
    tab = opened(make_systems(4), broken)
    assert counts(tab) != []
    if "A beats B most" in tab.locator(".side").text_content():
        sort_by(tab, "A beats B most")
    assert len(rows(tab)) == 4
    tab.get_by_role("tab", name="Corpus").click()
    assert tab.locator("#panel-corpus > *").count() >= 1


def test_a_sentence_without_tokens(opened: Opened) -> None:
    tab = opened({"one": [trajectory("", [], []), trajectory("x", ["a"], [1])]})
    assert counts(tab) == [0]
    tab.keyboard.press("Space")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("j")
    assert counts(tab) == [1]


def test_light_and_dark(opened: Opened) -> None:
    tab = opened(make_systems(3), make_analysis(make_systems(3)))
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(paper)
    tab.get_by_role("button", name="Dark theme").click()
    dark = tab.evaluate(paper)
    assert light != dark
    tab.get_by_role("tab", name="Corpus").click()
    fill = tab.locator(".heat rect").nth(0).get_attribute("fill")
    tab.get_by_role("button", name="Light theme").click()
    assert tab.evaluate(paper) == light
    assert tab.locator(".heat rect").nth(0).get_attribute("fill") != fill
    tab.evaluate("localStorage.clear()")
    tab.emulate_media(color_scheme="dark")
    opened(make_systems(3))
    assert tab.evaluate(paper) == dark


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440])
def test_nothing_overflows(width: int, opened: Opened, tab: Any) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    long = trajectory(
        "Donaudampfschifffahrtsgesellschaft" * 9, ["x" * 120, *"abcdefghijklmnopqrstuvwxyz"], list(range(1, 28))
    )
    systems = {"a-rather-long-name-of-an-order:with=options,and=more": [long], "two": [long]}
    opened(systems, make_analysis(systems), ["y" * 200], "A title that is quite long for a phone" * 2)
    for view in ("Sentences", "Corpus"):
        tab.get_by_role("tab", name=view).click()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, view


def test_everything_has_an_accessible_name_and_a_visible_focus(opened: Opened) -> None:
    systems = make_systems(5)
    tab = opened(systems, make_analysis(systems))
    sort_by(tab, "A beats B most")
    tab.get_by_role("tab", name="Corpus").click()
    assert tab.evaluate(NAMES) == []
    tab.get_by_role("tab", name="Sentences").click()
    tab.locator("h1").click()
    for _ in range(25):
        tab.keyboard.press("Tab")
        seen = tab.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
        assert seen[0] == "BODY" or seen[1] != "none", seen


def test_reduced_motion_is_respected(opened: Opened, tab: Any) -> None:
    tab.emulate_media(reduced_motion="reduce")
    opened(make_systems(1))
    assert tab.evaluate("getComputedStyle(document.querySelector('.token')).transitionDuration") == "0s"


def test_data_that_is_damaged_is_explained(tab: Any, tmp_path: Path, opened: Opened) -> None:
    opened(make_systems(2))
    file = tmp_path / "report.html"
    text = file.read_text(encoding="utf-8")
    start = text.index('id="data">') + len('id="data">')
    file.write_text(text[:start] + text[start + 400 :], encoding="utf-8")
    tab.goto(file.as_uri())
    tab.reload()
    alert = tab.get_by_role("alert")
    alert.wait_for()
    assert "cannot be read" in alert.text_content()


def test_a_revised_position_changes_at_its_step(opened: Opened) -> None:
    tab = opened({"plain": [trajectory("s", ["new", "b"], [2, 1])], "revised": [revised()]})
    assert [text.count("changed") for text in tab.locator(".fill").all_text_contents()] == [0, 1]
    words = tab.locator(".fill").nth(1).locator(".token .word")
    for key, filled, shown in [
        ("Home", [0, 0], []),
        ("ArrowRight", [1, 2], ["old", "b"]),
        ("End", [2, 2], ["new", "b"]),
    ]:
        tab.keyboard.press(key)
        assert counts(tab) == filled
        if shown:
            assert words.all_text_contents() == shown
    assert "old->new" in tab.locator(".fill-brackets").nth(1).text_content()


def test_puzzles_are_grids(opened: Opened) -> None:
    systems, solutions = make_answers(4)
    tab = opened(systems, None, solutions)
    assert tab.locator("#about").text_content() == "4 puzzles · 2 orders"
    assert tab.locator(".views .cells").count() == 2
    assert tab.locator(".views .clue .word").all_text_contents() == ["2", "2"]
    assert tab.locator(".views .fill-text").all_text_contents() == ["Solved", "Not solved: 1 of 15 cells is wrong"]
    assert tab.locator(".views .wrong").evaluate_all("all => all.map(cell => cell.dataset.i)") == ["0"]
    assert tab.locator(".fill-arcs:visible, .fill-brackets:visible").count() == 0
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".views .on").evaluate_all("all => all.map(cell => cell.dataset.i)") == ["0", "15"]
    sort_by(tab, "A beats B most")
    assert tab.locator(".row-head").first.text_content() == "1+1.00"
    tab.set_viewport_size({"width": 375, "height": 740})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    tab.get_by_role("tab", name="Corpus").click()
    assert tab.locator(".cell-map").count() == 2
    assert tab.locator(".cell-map text").count() == 32
    assert tab.locator(".cell-map text").nth(16).text_content() == "15.0"
    assert tab.locator(".heats figcaption").all_text_contents() == ["right100.0 % solved", "wrong0.0 % solved"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_text_with_masks_shows_what_was_given(opened: Opened) -> None:
    run = trajectory("the [MASK] [MASK] .", ["dog", "##s"], [2, 1])
    tab = opened({"x": [replace(run, canvas=["the", None, None, "."], task="infill")]})
    assert tab.locator(".views .clue .word").all_text_contents() == ["the", "."]
    assert tab.locator(".views .on .word").all_text_contents() == ["dog", "s"]
    assert tab.locator(".views .joined").count() == 3
    assert tab.locator(".fill-brackets").text_content() == "the {dog ##s} ."
