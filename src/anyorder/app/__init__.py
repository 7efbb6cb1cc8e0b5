"""The explorer: a local web server with a page and a JSON API. Needs the extra `app` (fastapi, uvicorn)."""
