"""One HTML file that shows how sentences were filled: data, style and code inside, nothing fetched.

The page knows trajectories and the analysis as plain JSON; it must not know models. Its code lies in `page/` as small
modules of JavaScript, joined here. The explorer serves the same page with another entry module.
"""

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from anyorder.decoding.trajectory import Trajectory, check_systems

FORMAT = 1
_PAGE = files("anyorder.web") / "page"


def write_html(
    file: Path,
    systems: Mapping[str, Sequence[Trajectory]],
    analysis: dict[str, Any] | None = None,
    references: Sequence[str] | None = None,
    title: str = "Generation orders",
) -> None:
    """A report on the same sentences in several orders, as one file that opens from disk."""
    file.write_text(report_page(systems, analysis, references, title), encoding="utf-8")


def report_page(
    systems: Mapping[str, Sequence[Trajectory]],
    analysis: dict[str, Any] | None = None,
    references: Sequence[str] | None = None,
    title: str = "Generation orders",
) -> str:
    """The text of `write_html`'s file."""
    return page(title, entry="report.js", data=pack(systems, analysis, references))


def live_page() -> str:
    """The explorer's page: the same code, but its sentences come from the API of the server that sends it."""
    return page("anyorder explore", entry="live.js", live=True)


def page(title: str, entry: str, data: dict[str, Any] | None = None, live: bool = False) -> str:
    """The page around an entry module of `page/`.

    A content security policy allows this style sheet and this script by their hashes and nothing else. A live page may
    talk to its own origin.
    """
    style = _read("style.css")
    script = bundle(entry)
    policy = [
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live:
        policy.append("connect-src 'self'")
    parts = {
        "title": html.escape(title),
        "policy": "; ".join(policy),
        "style": style,
        "data": "" if data is None else encode(data),
        "script": script,
    }
    # One pass, so that nothing put in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("index.html"))


def pack(
    systems: Mapping[str, Sequence[Trajectory]],
    analysis: dict[str, Any] | None = None,
    references: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What the page reads. Sentence by sentence, because the orders of one sentence resemble each other and compress.

    A sentence is `[source, runs]`, a run `[text, tokens, steps, logprobs]` with tokens as numbers in `vocabulary` and
    log-probabilities in hundredths, sign dropped. `page/data.js` is the other side.
    """
    check_systems(systems, references)
    rows = list(zip(*systems.values(), strict=True))
    counts = Counter(token for row in rows for run in row for token in run.tokens)
    vocabulary = [token for token, _ in counts.most_common()]  # the shortest numbers for the most frequent
    number = {token: i for i, token in enumerate(vocabulary)}
    return {
        "format": FORMAT,
        "systems": [
            {"name": name, "order": runs[0].order if runs else "", "signature": runs[0].signature if runs else ""}
            for name, runs in systems.items()
        ],
        "vocabulary": vocabulary,
        "sentences": [
            [
                next((run.source for run in row if run.source), ""),
                [
                    [
                        run.text,
                        [number[token] for token in run.tokens],
                        run.steps,
                        [_hundredths(p) for p in run.logprobs],
                    ]
                    for run in row
                ],
            ]
            for row in rows
        ],
        "references": None if references is None else list(references),
        "analysis": _rounded(analysis),
    }


def encode(data: dict[str, Any]) -> str:
    """JSON, compressed, in letters that mean nothing to HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), mtime=0)).decode("ascii")


def bundle(entry: str) -> str:
    """The module `entry` of `page/` and all it imports as one script.

    Every module becomes a function that returns what it exports, so names stay private as they are in files. The
    modules use two forms only: `import { a, b } from "./file.js";` on one line and `export` before a declaration.
    """
    done: dict[str, str] = {}
    exports: dict[str, list[str]] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"modules import each other: {' → '.join((*path, name))}")
        if name in done:
            return
        text = _read(name)
        for wanted, other in _IMPORT.findall(text):
            add(other, (*path, name))
            for missing in {one.strip() for one in wanted.split(",")} - set(exports[other]):
                raise ValueError(f"{name} imports {missing}, which {other} does not export")
        exports[name] = [exported for _, exported in _EXPORT.findall(text)]
        text = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {_variable(found[2])};", text)
        text = _EXPORT.sub(r"\1 \2", text)
        if re.search(r"^(import|export)\b", text, re.MULTILINE) or "</script" in text.lower():
            raise ValueError(f"{name}: a form that cannot be inlined")
        done[name] = f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {', '.join(exports[name])} }};\n}})();\n"

    add(entry, ())
    return '"use strict";\n' + "".join(done.values())


_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js").replace("-", "_")


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _hundredths(logprob: float) -> int:
    return min(round(-logprob * 100), 9999) if math.isfinite(logprob) else 9999


def _rounded(value: Any) -> Any:
    """Five digits are more than a screen shows; what is no number becomes null, which JSON can say."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value
