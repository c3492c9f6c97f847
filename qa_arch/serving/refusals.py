"""Every error of the service in a single form: ``{"error": {"message", "field", "remedy"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from qa_arch.serving.messages import NO_UNICODE

NESTED = "There was an error parsing the body"
"""FastAPI's words for JSON that cannot be read for another reason than its grammar: depth, huge numbers."""
REMEDIES = {
    400: "send a JSON object in UTF-8; /docs shows the fields",
    404: "/docs lists the paths",
    405: "/docs lists the methods of each path",
}
TAGS = ("body", "single", "batch")
"""Parts of pydantic's place of an error that are no fields."""


class RefusalError(Exception):
    """A request that is not answered: HTTP status, what is wrong, in which field, and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        remedy: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        id_: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.remedy, self.field = status, message, remedy, field
        self.headers, self.id = dict(headers or {}), id_

    def response(self) -> JSONResponse:
        """The refusal as JSON; ``id`` is there only where the server's log has more to say under it."""
        error = {"message": self.message, "field": self.field, "remedy": self.remedy}
        if self.id:
            error["id"] = self.id
        return JSONResponse({"error": error}, self.status, self.headers)


def busy(message: str, status: int = 429) -> RefusalError:
    """A refusal that the client may repeat."""
    return RefusalError(status, message, remedy="try again in a moment", headers={"Retry-After": "1"})


def handle_errors(app: FastAPI) -> None:
    """Let ``app`` answer the errors of its framework, such as unknown paths, in our form."""

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status, detail = error.status_code, str(error.detail)
        message = "the JSON is too deep or holds a number that is too long" if detail == NESTED else detail
        remedy = REMEDIES.get(status, HTTPStatus(status).description or "see /docs")
        return RefusalError(status, message, remedy=remedy, headers=error.headers).response()

    async def of_body(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _of_field(error.errors()[0]).response()

    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_body)


def _of_field(error: Mapping[str, Any]) -> RefusalError:
    """The first problem that pydantic has with a body."""
    kind, message = error["type"], error["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        message = f"no valid JSON: {error['ctx']['error']} (character {error['loc'][-1]})"
        return RefusalError(400, message, remedy=REMEDIES[400])
    field = field_name(error["loc"])
    if kind == NO_UNICODE:
        return RefusalError(400, message, field=field, remedy="replace it, for instance by U+FFFD")
    remedy = "leave it out" if kind == "extra_forbidden" else "change it as the message says"
    return RefusalError(422, message, field=field, remedy=remedy)


def field_name(place: Sequence[str | int]) -> str | None:
    """``queries[2].question`` for pydantic's ``("body", "batch", "queries", 2, "question")``."""
    parts = list(place)
    while parts and parts[0] in TAGS:
        parts.pop(0)
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or None
