"""The served OpenAPI document: the bodies that routes read by hand, and the errors that every route may answer with."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

_STATUSES: Final = (400, 401, 404, 408, 413, 429, 503)

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": _ERROR}}}
    for status in _STATUSES
}
"""`responses` of every route."""

STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "An answer, or a stream of events", "content": {"text/event-stream": {}}}
}
"""Of the routes that may answer with server-sent events."""


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `kind`."""
    schema = kind.model_json_schema()
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """References resolved: they would be looked for at the document's root. None of our bodies contains itself."""
    if isinstance(schema, list):
        return [_inline(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if reference := schema.get("$ref"):
        schema = definitions[reference.rpartition("/")[2]] | {k: v for k, v in schema.items() if k != "$ref"}
    return {key: _inline(value, definitions) for key, value in schema.items()}
