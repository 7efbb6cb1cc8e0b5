"""Builds one HTML page from the JavaScript modules and the style sheet in `page/`.

It concatenates and hashes files; it does not know what the page shows. There is no build step and no framework.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import Any

_PAGE = files("anyorder.web") / "page"


def page(title: str, entry: str, data: dict[str, Any] | None = None, live: bool = False) -> str:
    """The HTML page that runs one module of `page/`.

    A content security policy allows this style sheet and this script by their hashes and nothing else; a live page may
    also send requests to its own origin. data: What the page shows; it is embedded.
    """
    style, script = read_page_file("style.css"), bundle(entry)
    policy = f"default-src 'none'; script-src {csp_hash(script)}; style-src {csp_hash(style)}; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if live else "")
    parts = {
        "title": html.escape(title),
        "policy": policy,
        "style": style,
        "data": "" if data is None else _embed(data),
        "script": script,
    }
    # A single pass, so that inserted text is never searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_page_file("index.html"))


def bundle(entry: str) -> str:
    """The module `entry` and everything it imports, as one script.

    Each module becomes a function that returns its exports, so its other names stay private. Modules may use two forms
    only: `import { a, b } from "./file.js";` on one line, and `export` before a declaration.
    """
    bundled: dict[str, str] = {}
    exports: dict[str, list[str]] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"modules import each other: {' → '.join((*importers, name))}")
        if name in bundled:
            return
        text = read_page_file(name)
        for names, imported in _IMPORT.findall(text):
            add(imported, (*importers, name))
            for missing in {part.strip() for part in names.split(",")} - set(exports[imported]):
                raise ValueError(f"{name} imports {missing}, which {imported} does not export")
        exports[name] = [exported for _, exported in _EXPORT.findall(text)]
        text = _IMPORT.sub(lambda match: f"const {{{match[1]}}} = {_variable(match[2])};", text)
        text = _EXPORT.sub(r"\1 \2", text)
        if re.search(r"^(import|export)\b", text, re.MULTILINE) or "</script" in text.lower():
            raise ValueError(f"{name}: contains a form that cannot be inlined")
        returned = ", ".join(exports[name])
        bundled[name] = f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {returned} }};\n}})();\n"

    add(entry, ())
    return '"use strict";\n' + "".join(bundled.values())


def csp_hash(text: str) -> str:
    """The source expression that allows one inline script or style in a content security policy.

    >>> csp_hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_page_file(name: str) -> str:
    """A file of `page/`."""
    return (_PAGE / name).read_text(encoding="utf-8")


_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js").replace("-", "_")


def _embed(data: dict[str, Any]) -> str:
    """Compressed JSON in base64, which holds no character that is special in HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), mtime=0)).decode("ascii")
