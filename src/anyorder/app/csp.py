"""The Content-Security-Policy header: a page may run its own inline scripts and styles, and nothing else."""

from html.parser import HTMLParser

from anyorder.web.bundle import csp_hash

BASE_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""For every response: nothing from other origins and nothing inline."""


def page_policy(page: str) -> str:
    """The policy of an HTML page: `BASE_POLICY`, and the page's own inline scripts and styles by their hashes."""
    return f"{BASE_POLICY}; img-src 'self' data:{inline_sources(page)}"


def inline_sources(page: str) -> str:
    """The directives that allow the inline scripts and styles of a page.

    >>> inline_sources("<p>text</p><script></script>")
    "; script-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    parser = _InlineParser()
    parser.feed(page)
    parser.close()
    return "".join(
        f"; {tag}-src 'self' {' '.join(csp_hash(text) for text in texts)}"
        for tag, texts in parser.texts.items()
        if texts
    )


class _InlineParser(HTMLParser):
    """Collects the contents of <script> and <style> elements."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._open_tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.texts and "src" not in dict(attrs):
            self._open_tag = tag
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open_tag:
            self.texts[self._open_tag][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open_tag = ""
