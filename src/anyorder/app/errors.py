"""Turns every error into one line of JSON: an `InputError`, an `HTTPException`, and wrong fields of a request."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from anyorder.app.schemas import ErrorResponse
from anyorder.errors import InputError

MAX_MESSAGE = 500
"""Maximum characters of an error message; it may repeat what the client sent."""
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The body is not JSON, or the Host is wrong."},
    401: {"model": ErrorResponse, "description": "The server has a token, and the request does not carry it."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    415: {"model": ErrorResponse, "description": "The Content-Type is not application/json."},
    422: {"model": ErrorResponse, "description": "A field is wrong; the error names it."},
    503: {"model": ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
}
"""What the API's description says of them."""


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The error as one line of JSON."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    line = line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."
    return JSONResponse({"error": line}, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(InputError)
    async def of_input(request: Request, error: InputError) -> JSONResponse:
        return error_response(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def of_fields(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            message = f"the body is not JSON: {first['ctx']['error']} (character {first['loc'][-1]})"
            return error_response(400, message)
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        return error_response(422, f"{field or 'the body'}: {first['msg']}")
