"""The file: what is embedded, what is escaped, how large it is."""

import base64
import gzip
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from anyorder.errors import InputError
from anyorder.report.html import bundle, pack, page, report_page, write_html
from tests.report.conftest import make_analysis, make_systems, trajectory

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Elements and their attributes, as a browser sees them, and the text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "title": [], "h1": []}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in self.inside:
            self.inside[self.open][-1] += data


def embedded(text: str) -> dict[str, Any]:
    data = re.search(r'id="data">([^<]*)</script>', text)
    assert data
    return json.loads(gzip.decompress(base64.b64decode(data[1])))


def test_everything_of_a_run_can_be_read_back() -> None:
    systems = make_systems(20)
    told = embedded(report_page(systems, None, [f"reference {i}" for i in range(20)]))
    assert [system["name"] for system in told["systems"]] == list(systems)
    assert told["references"][3] == "reference 3"
    for i, (source, runs) in enumerate(told["sentences"]):
        for name, (text, tokens, steps, logprobs) in zip(systems, runs, strict=True):
            run = systems[name][i]
            assert (source, text, steps) == (run.source, run.text, run.steps)
            assert [told["vocabulary"][token] for token in tokens] == run.tokens
            assert [-p / 100 for p in logprobs] == pytest.approx(run.logprobs, abs=0.0051)


def test_frequent_tokens_have_small_numbers() -> None:
    runs = [trajectory("s", ["b", "a", "a"], [1, 2, 3]), trajectory("t", ["a", "c", "b"], [1, 2, 3])]
    assert pack({"x": runs})["vocabulary"] == ["a", "b", "c"]


def test_no_number_becomes_null_and_infinity_an_unlikely_token() -> None:
    run = trajectory("s", ["a", "b"], [1, 2])
    run.logprobs[0] = float("-inf")
    told = embedded(report_page({"x": [run]}, {"systems": [{"figures": {"f": {"value": float("nan"), "low": 1 / 3}}}]}))
    assert told["analysis"]["systems"][0]["figures"]["f"] == {"value": None, "low": 0.33333}
    assert told["sentences"][0][1][0][3] == [9999, 20]


def test_nothing_in_the_data_becomes_an_element() -> None:
    clean = Tags(report_page(make_systems(1, 1), None, ["r"], "title")).tags
    run = trajectory(EVIL, [EVIL, "{{script}}"], [1, 2], order=EVIL)
    dirty = Tags(report_page({EVIL: [run]}, {"systems": [{"name": EVIL}]}, [EVIL], EVIL))
    assert [tag for tag, _ in dirty.tags] == [tag for tag, _ in clean]
    assert dirty.inside["title"] == dirty.inside["h1"] == [EVIL]


def test_a_title_with_the_templates_own_marks_is_text() -> None:
    assert Tags(report_page(make_systems(1, 1), title="{{data}} \\1 {{style}}")).inside["title"] == [
        "{{data}} \\1 {{style}}"
    ]


def test_only_this_style_and_this_script_may_run() -> None:
    seen = Tags(report_page(make_systems(2)))
    policy = next(
        attrs["content"] for tag, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-ActorCritic"
    )
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == digest(seen.inside["script"][1])
    assert rules["style-src"] == digest(seen.inside["style"][0])
    assert "connect-src" not in rules
    assert "unsafe" not in policy


def test_a_live_page_talks_to_its_own_origin_only() -> None:
    text = page("live", "report.js", live=True)
    assert "connect-src 'self'" in text
    assert 'id="data"></script>' in text


def test_nothing_is_fetched() -> None:
    text = report_page(make_systems(2), make_analysis(make_systems(2)))
    assert set(re.findall(r"https?://[^\s\"'<>]*", text)) == {"http://www.w3.org/2000/svg"}
    links = [attrs.get("src") or attrs.get("href") for _, attrs in Tags(text).tags]
    assert {link for link in links if link} == {"data:,"}


def test_systems_must_tell_of_the_same_sentences() -> None:
    known, unknown = [trajectory("one", ["x"], [1])], [trajectory("", ["x"], [1])]
    with pytest.raises(InputError, match="a and b translate different sentences in line 1"):
        pack({"a": known, "b": [trajectory("two", ["x"], [1])]})
    assert pack({"a": unknown, "b": known})["sentences"][0][0] == "one"


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_html(tmp_path / name, make_systems(5), make_analysis(make_systems(5)))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_tenth_of_a_large_report_takes_a_tenth_of_what_is_allowed() -> None:
    systems = make_systems(300, 6)
    analysis = make_analysis(systems)
    start = time.perf_counter()
    text = report_page(systems, analysis)
    assert time.perf_counter() - start < 6
    assert len(text) < 1e6


def test_modules_are_joined_each_once_and_after_what_they_import() -> None:
    text = bundle("report.js")
    made = re.findall(r"^const (module_\w+) = \(", text, re.MULTILINE)
    assert len(made) == len(set(made))
    assert made[-1] == "module_report"
    for found in re.finditer(r"^const \{[^}]*\} = (module_\w+);", text, re.MULTILINE):
        assert text.index(f"const {found[1]} = (") < found.start()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'},
            "import each other: a.js → b.js → a.js",
        ),
        (
            {"a.js": 'import { b } from "./b.js";', "b.js": "export const c = 1;"},
            "a.js imports b, which b.js does not export",
        ),
        ({"a.js": "export default 1;"}, "cannot be inlined"),
        ({"a.js": 'const x = "</SCRIPT>";'}, "cannot be inlined"),
    ],
)
def test_modules_that_cannot_be_joined(files: dict[str, str], message: str, tmp_path: Path, monkeypatch: Any) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("anyorder.report.html._PAGE", tmp_path)
    with pytest.raises(ValueError, match=message):
        bundle("a.js")
