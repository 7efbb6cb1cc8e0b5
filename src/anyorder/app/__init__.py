"""The explorer: a local web server with a page and a JSON API. Needs the extra `app` (fastapi, uvicorn)."""

QUEUE = 512
"""Maximum number of requests running or waiting, unless the command says otherwise."""
