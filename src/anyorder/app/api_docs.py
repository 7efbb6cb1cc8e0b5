"""The description of the API as an HTML page without scripts, made from its OpenAPI schema.

FastAPI's own documentation pages load scripts from other servers.
"""

import html
import json
from typing import Any


def api_docs_page(schema: dict[str, Any]) -> str:
    """The paths of the API, and the fields of its requests and responses."""
    title = f"{schema['info']['title']} {schema['info']['version']}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts.append('<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            description = html.escape(operation["description"])
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{description}</p>")
    parts.append("<h2>Schemas</h2>")
    for name, component in schema["components"]["schemas"].items():
        parts.append(f"<h3>{html.escape(name)}</h3><pre>{html.escape(_fields(component))}</pre>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>anyorder API</title>'
    return f'{head}<meta name="viewport" content="width=device-width">{"".join(parts)}'


def _fields(component: dict[str, Any]) -> str:
    lines = (
        f"{name}: {json.dumps({key: value for key, value in field.items() if key not in ('title', 'description')})}"
        + (f"\n    {field['description']}" if "description" in field else "")
        for name, field in component.get("properties", {}).items()
    )
    return "\n".join(lines)
