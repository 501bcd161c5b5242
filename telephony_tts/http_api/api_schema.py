"""Parts of the API's description (OpenAPI) that FastAPI cannot derive from a route, because the route reads its request
by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

CALL: Schema = {
    "name": "call",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "maxLength": 128, "pattern": "^[A-Za-z0-9_.:-]+$"},
    "description": "Speak to the caller of this call. The response is silence of the same length.",
}
"""The parameter of all routes that speak."""

JOINS_CALL: Schema = {"parameters": [CALL]}
AUDIO: dict[int | str, Schema] = {
    200: {
        "description": "The speech, as a stream.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""The response of all routes that speak. Its Content-Type is that of the format."""


def query_of_model(model: type[BaseModel]) -> Schema:
    """The fields of a model as the options of a query."""
    schema = model.model_json_schema()
    parameters = [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
        for name, field in schema["properties"].items()
    ]
    return {"parameters": [*parameters, CALL]}


def body_of_model(model: type[BaseModel], **files: str) -> Schema:
    """The fields of a model as a body: JSON or a form. A multipart form may have `files` too, by their descriptions."""
    schema = model.model_json_schema()
    with_files = {**schema, "properties": {**schema["properties"], **_files(files)}}
    kinds = {
        "application/json": schema,
        "application/x-www-form-urlencoded": schema,
        "multipart/form-data": with_files if files else schema,
    }
    return {**_body(kinds), **JOINS_CALL}


def form(texts: Mapping[str, str], files: Mapping[str, str]) -> Schema:
    """A form, all of whose fields must be there: texts and files, by their descriptions."""
    properties = {
        **{name: {"type": "string", "description": description} for name, description in texts.items()},
        **_files(files),
    }
    schema = {"type": "object", "required": list(properties), "properties": properties}
    kinds = ("multipart/form-data",) if files else ("application/x-www-form-urlencoded", "multipart/form-data")
    return {**_body(dict.fromkeys(kinds, schema)), **JOINS_CALL}


def _body(kinds: Mapping[str, Schema]) -> Schema:
    return {"requestBody": {"required": True, "content": {kind: {"schema": each} for kind, each in kinds.items()}}}


def _files(files: Mapping[str, str]) -> Schema:
    return {
        name: {"type": "string", "format": "binary", "description": description} for name, description in files.items()
    }
