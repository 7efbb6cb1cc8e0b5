"""The description of the API as an HTML page without scripts, made from its OpenAPI schema.

FastAPI's own documentation pages load scripts from other servers.
"""

import html
import json
from typing import Any


def api_docs_page(schema: dict[str, Any]) -> str:
    """The paths of the API, and the fields of its requests and responses."""
    parts = ['<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>']
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation['description'])}</p>")
    for name, component in schema["components"]["schemas"].items():
        fields = json.dumps(component.get("properties", {}), indent=1)
        parts.append(f"<h3>{html.escape(name)}</h3><pre>{html.escape(fields)}</pre>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>anyorder API</title><h1>{html.escape(schema['info']['title'])}</h1>{''.join(parts)}"
