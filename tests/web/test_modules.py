"""Single modules of the page in a real browser."""

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from anyorder.decoding.trajectory import Write
from anyorder.report.plots import color_scale
from anyorder.report.terminal import trace
from anyorder.web.bundle import bundle, read_page_file
from tests.report.conftest import trajectory

pytestmark = pytest.mark.browser


def test_brackets_are_those_of_the_terminal(tab: Any) -> None:
    generator = random.Random(3)
    cases = []
    for length in [0, 1, 2, 3, 5, 9, 17] * 12:
        steps = (
            [generator.randint(1, max(1, length // 2)) for _ in range(length)]
            if generator.random() < 0.3
            else generator.sample(range(1, length + 1), length)
        )
        cases.append(trajectory("s", [f"w{i}@@" if i % 3 == 1 else f"w{i}" for i in range(length)], steps))
    script = bundle("brackets.js") + "module_brackets.bracketed"
    tab.goto("about:blank")
    for run in cases:
        lines = tab.evaluate(
            "([script, tokens, steps, last]) => { const f = (0, eval)(`{${script}}`); return Array.from({length: last}, (_, i) => f(tokens, steps, i + 1)); }",
            [script, run.tokens, run.steps, max(run.steps, default=0)],
        )
        width = len(str(max(run.steps, default=0)))
        assert lines == [line[width + 2 :] for line in trace(run)]


def test_colors_are_those_of_the_figures_and_legible(tab: Any) -> None:
    tab.goto("about:blank")
    script = bundle("color.js") + "module_color"
    colors = tab.evaluate(
        "(script) => { const c = (0, eval)(`{${script}}`); return Array.from({length: 65}, (_, i) => [c.rgb(i / 64), c.ink(i / 64)]); }",
        script,
    )

    def luminance(color: Any) -> float:
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in color]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for i, (color, ink) in enumerate(colors):
        assert color == pytest.approx(color_scale(i / 64), abs=1e-9)
        assert all(0 < x < 1 for x in color)  # nothing clipped
        letters = {"#fff": 1.0, "#000": 0.0}[ink]
        light, dark = sorted((luminance(color), letters), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_links_can_be_read_back(tab: Any) -> None:
    tab.goto("about:blank")
    query = {
        "text": "Ümläute & <b>%23#?</b>", "model": "de-en", "task": "de-en", "length": "7", "schedule": "threshold:0.9",
        "revision": "mask-predict:4", "reference": "a & b", "orders": ["outer-in:stride=2", "easy-first:logp=1,negent=0.9"],
    }  # fmt: skip
    fills = [{"position": 4, "token": None}, {"position": 0, "token": "a:b@@"}, {"position": 2, "token": "&"}]
    by_hand = {"size": 5, "advice": "margin", "fills": fills}
    script = "([script, query, byHand]) => { const m = (0, eval)(`{${script}}`); return m.fromHash('#' + m.toHash(query, byHand)); }"
    link = bundle("link.js") + "module_link"
    assert tab.evaluate(script, [link, query, by_hand]) == {"query": query, "byHand": by_hand}
    plain = {**query, "schedule": "one", "revision": "none", "reference": ""}
    assert tab.evaluate(script, [link, plain, None]) == {"query": plain, "byHand": None}
    assert tab.evaluate("([script, hash]) => (0, eval)(`{${script}}`).fromHash(hash)", [link, "#length=4"]) is None


def test_brackets_show_what_was_given(tab: Any) -> None:
    tab.goto("about:blank")
    script = bundle("brackets.js") + "module_brackets.bracketed"
    run = [["the", "dog", "sees", "a", None], [None, 1, 2, None, None]]
    lines = tab.evaluate(
        "([script, tokens, steps]) => [0, 1, 2].map((step) => (0, eval)(`{${script}}`)(tokens, steps, step))",
        [script, *run],
    )
    assert lines == ["the __ __ a __", "the dog __ a __", "the [dog sees] a __"]


@pytest.mark.parametrize(
    ("tokens", "words", "spelled"),
    [
        (["hous@@", "es", "are", "big"], [[0, 1], [2], [3]], ["hous", "es", "are", "big"]),
        (["hous", "##es", "are", None, "##s"], [[0, 1], [2], [3], [4]], ["hous", "es", "are", None, "s"]),
        (["The", "Ġhous", "es", "Ġare", "Ġ"], [[0], [1, 2], [3], [4]], ["The", "hous", "es", "are", "Ġ"]),
        (["▁The", "▁hous", "es", None], [[0], [1, 2], [3]], ["The", "hous", "es", None]),
        (["M", "K", "V", "##"], [[0], [1], [2], [3]], ["M", "K", "V", "##"]),
        ([], [], []),
    ],
)
def test_subwords_of_every_vocabulary_are_joined(
    tab: Any, tokens: list[str | None], words: list[list[int]], spelled: list[str | None]
) -> None:
    tab.goto("about:blank")
    script = """([script, tokens]) => { const { wordsOf, spelled } = (0, eval)(`{${script}}`);
        return [wordsOf(tokens), tokens.map((token) => token && spelled(token))]; }"""
    assert tab.evaluate(script, [bundle("subwords.js") + "module_subwords", tokens]) == [words, spelled]


FILL_VIEW = """([script, run]) => {
  const { fillView } = (0, eval)(`{${script}}`);
  window.calls = [];
  window.view = fillView(document.body, run, {
    onPick: (position) => calls.push(["pick", position]),
    onStep: (step) => calls.push(["step", step]),
    candidates: async (position) => position === 2 ? [{token: "<b>dog</b>", p: 0.75}, {token: "cat", p: 0.2}] : null,
  });
}"""


def test_the_fill_view_alone_shows_a_run_under_way(tab: Any) -> None:
    """As the explorer uses it: blanks, a distribution, candidates, a position picked by hand, more tokens."""
    tab.goto("about:blank")
    tab.add_style_tag(content=read_page_file("style.css"))
    run = {
        "tokens": ["the", None, None],
        "steps": [1, None, None],
        "order": "mine",
        "scores": [None, 0.9, 0.1],
        "next": 1,
    }
    tab.evaluate(FILL_VIEW, [bundle("fill.js") + "module_fill", run])
    assert tab.locator(".token.blank").count() == 2
    assert tab.locator(".token.next").get_attribute("data-i") == "1"
    assert tab.locator(".blank .step").all_text_contents() == ["90 %", "10 %"]
    assert tab.locator(".fill-brackets").text_content() == "the __ __"
    tab.locator(".blank").nth(1).hover()
    tab.wait_for_selector(".candidates li")
    assert tab.locator(".candidates .word").all_text_contents() == ["<b>dog</b>", "cat"]
    tab.locator(".blank").nth(1).click()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Space")
    tab.locator(".token.on").click()
    assert tab.evaluate("calls") == [["pick", 2], ["pick", 1], ["step", 1]]
    tab.evaluate("view.update({tokens: ['the', null, 'dog'], steps: [1, null, 2], order: 'mine'})")
    assert tab.evaluate("[view.step, view.last]") == [2, 2]
    assert tab.locator(".token.on").count() == 2
    assert tab.evaluate("document.activeElement.dataset.i") == "0"
    tab.evaluate("view.show(1)")
    assert tab.locator(".token.on").count() == 1
    tab.evaluate("view.destroy()")
    assert tab.locator(".fill").count() == 0


def test_the_fill_view_shows_positions_that_are_written_again(tab: Any) -> None:
    """A revision: every step shows the newest writes, in the terminal's notation too."""
    tab.goto("about:blank")
    tab.add_style_tag(content=read_page_file("style.css"))
    writes = [
        Write(0, 1, "the", -0.1), Write(1, 1, "cat", -2.0), Write(2, 1, "see", -1.5), Write(1, 2, "wolf", -0.7),
        Write(2, 3, "sees", -0.2), Write(1, 3, "dog", -0.3),
    ]  # fmt: skip
    run = replace(trajectory("margin", ["the", "dog", "sees"], [1, 3, 3]), writes=writes)
    shown = {"tokens": run.tokens, "steps": run.steps, "logprobs": [-0.1, -0.3, -0.2], "order": "margin"}
    script = "([script, run]) => { window.view = (0, eval)(`{${script}}`).fillView(document.body, run); }"
    tab.evaluate(script, [bundle("fill.js") + "module_fill", {**shown, "writes": [asdict(write) for write in writes]}])
    words = {0: ["", "", ""], 1: ["the", "cat", "see"], 2: ["the", "wolf", "see"], 3: ["the", "dog", "sees"]}
    width = tab.locator(".token").nth(1).bounding_box()["width"]
    for step in (3, 2, 1, 0, 2, 3):
        tab.evaluate(f"view.show({step})")
        assert [word if tab.locator(".token").nth(i).evaluate("token => token.matches('.on')") else "" for i, word in
                enumerate(tab.locator(".word").all_text_contents())] == words[step]  # fmt: skip
        if step:
            assert tab.locator(".fill-brackets").text_content() == trace(run)[step - 1].split("  ", 1)[1]
        assert tab.locator(".arcs circle:not(.off)").count() == sum(write.step <= step for write in writes)
        assert tab.locator(".token").nth(1).bounding_box()["width"] == width
    assert tab.locator(".token.again").count() == tab.locator(".token.now").count() == 2
    token = tab.locator(".token").nth(1)
    assert token.get_attribute("aria-label") == "dog, position 2, step 3, written again, was wolf"
    token.hover()
    assert tab.locator(".tip dt").all_text_contents() == [
        "token", "position", "step", "probability", "before, step 1", "before, step 2",
    ]  # fmt: skip
    tab.evaluate("view.show(2)")
    token.click()  # goes to the step of what is shown
    assert tab.evaluate("view.step") == 2
    tab.evaluate("view.set({color: 'probability'})")
    assert token.get_attribute("aria-label") == "wolf, position 2, step 2, written again, was cat"


def test_the_fill_view_marks_given_tokens_and_selects_them(tab: Any) -> None:
    tab.goto("about:blank")
    run = {"tokens": ["the", "dog", None], "steps": [1, 2, None], "given": [False, True, False]}
    script = """([script, run]) => {
      const { fillView } = (0, eval)(`{${script}}`);
      window.selected = [];
      window.view = fillView(document.body, run, { onSelect: (position) => selected.push(position) });
    }"""
    tab.evaluate(script, [bundle("fill.js") + "module_fill", run])
    assert tab.locator(".given").all_text_contents() == ["dog2"]
    assert tab.locator(".token").nth(1).get_attribute("aria-label") == "dog, position 2, step 2, chosen by you"
    tab.locator(".token").nth(0).click()
    tab.locator(".token").nth(1).click()
    assert tab.evaluate("selected") == [0, 1]
    assert tab.evaluate("view.step") == 2  # selecting does not go to a step
    tab.locator(".token").nth(1).hover()
    assert "chosen byyou" in tab.locator(".tip").text_content()
