"""What a browser gets: leave for the page's own scripts and no others, and the API described without any."""

import base64
import hashlib
import html
import json
from html.parser import HTMLParser
from typing import Any


def inline_sources(page: str) -> str:
    """The directives that allow a page's own inline scripts and styles, each by its hash, and no others."""
    found = _Inline()
    found.feed(page)
    found.close()
    return "".join(
        f"; {kind}-src 'self' {' '.join(_hash(text) for text in texts)}" for kind, texts in found.texts.items() if texts
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Inline(HTMLParser):
    """The contents of <script> and <style>."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.texts and "src" not in dict(attrs):
            self._inside = tag
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def describe(schema: dict[str, Any]) -> str:
    """The API as a page without scripts: what can be asked, and the shapes of questions and answers."""
    parts = [f"<h1>{html.escape(schema['info']['title'])} {html.escape(schema['info']['version'])}</h1>"]
    parts.append('<p>Machines read <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(about['description'])}</p>")
    parts.append("<h2>Shapes</h2>")
    for name, shape in schema["components"]["schemas"].items():
        parts.append(f"<h3>{html.escape(name)}</h3><pre>{html.escape(_fields(shape))}</pre>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>anyorder API</title>'
    return f'{head}<meta name="viewport" content="width=device-width">{"".join(parts)}'


def _fields(shape: dict[str, Any]) -> str:
    lines = (
        f"{name}: {json.dumps({key: value for key, value in field.items() if key not in ('title', 'description')})}"
        + (f"\n    {field['description']}" if "description" in field else "")
        for name, field in shape.get("properties", {}).items()
    )
    return "\n".join(lines)
