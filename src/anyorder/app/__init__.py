"""The explorer: a local web app, and the JSON API under it. Needs the extra `app` (fastapi, uvicorn)."""
