"""The bundle: modules are joined in order, and a content security policy allows nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

from anyorder.web.bundle import bundle, csp_hash, page


def test_a_live_page_talks_to_its_own_origin_only() -> None:
    text = page("live", "report.js", live=True)
    assert "connect-src 'self'" in text
    assert 'id="data"></script>' in text


@pytest.mark.parametrize("entry", ["report.js", "explorer.js"])
def test_the_policy_names_the_page_s_own_script_and_style(entry: str) -> None:
    text = page("title", entry)
    [style], [*_, script] = (
        re.findall("<style>(.*?)</style>", text, re.DOTALL),
        re.findall("<script[^>]*>(.*?)</script>", text, re.DOTALL),
    )
    assert f"script-src {csp_hash(script)}; style-src {csp_hash(style)};" in text


@pytest.mark.parametrize("name", ["report.js", "explorer.js"])
def test_modules_are_joined_each_once_and_after_what_they_import(name: str) -> None:
    text = bundle(name)
    names = re.findall(r"^const (module_\w+) = \(", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == f"module_{name.removesuffix('.js')}"
    for match in re.finditer(r"^const \{[^}]*\} = (module_\w+);", text, re.MULTILINE):
        assert text.index(f"const {match[1]} = (") < match.start()


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
    monkeypatch.setattr("anyorder.web.bundle._PAGE", tmp_path)
    with pytest.raises(ValueError, match=message):
        bundle("a.js")
