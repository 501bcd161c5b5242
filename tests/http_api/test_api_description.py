"""The API's description (OpenAPI) and the page that shows it: complete, and without addresses of other servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from server_settings import transport_settings

from telephony_tts.doors.cartesia.routes import CartesiaText
from telephony_tts.doors.cosyvoice.routes import ROUTES
from telephony_tts.doors.deepgram.routes import DeepgramText
from telephony_tts.doors.elevenlabs.routes import ElevenLabsText
from telephony_tts.doors.jambonz.routes import JambonzTts
from telephony_tts.doors.openai.routes import OpenAISpeech
from telephony_tts.doors.vapi.routes import VapiMessage
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api.application import application
from telephony_tts.http_api.docs_page import docs_page
from telephony_tts.http_api.tts_routes import TtsRequest
from telephony_tts.transport.server import Server

SPEAK = ("/tts/stream", "/v1/audio/speech", "/vapi/voice", "/jambonz/tts", "/v1/speak", "/tts/bytes",
         "/v1/text-to-speech/{name}", "/v1/text-to-speech/{name}/stream", *ROUTES)  # fmt: skip


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    gate, _ = application(Server(transport_settings(), Catalog([FakeEngine()])))
    described: dict[str, Any] = gate._app.openapi()  # type: ignore[attr-defined]
    return described


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def resolved(api: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Any = api
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return resolved(api, found)


def bodies(api: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    """The schema of each content type that the path takes."""
    content = api["paths"][path]["post"]["requestBody"]["content"]
    return {kind: resolved(api, each["schema"]) for kind, each in content.items()}


def test_every_reference_leads_somewhere(api: dict[str, Any]) -> None:
    found = list(references(api))
    assert len(found) > 3
    for reference in found:
        assert resolved(api, {"$ref": reference})


def test_the_fields_of_tts_stream_are_those_that_it_reads(api: dict[str, Any]) -> None:
    fields = list(TtsRequest.model_fields)
    query = api["paths"]["/tts/stream"]["get"]["parameters"]
    assert [each["name"] for each in query] == [*fields, "call"]
    assert {each["name"] for each in query if each["required"]} == {"text"}
    assert all(each["in"] == "query" and each["schema"] for each in query)
    told = bodies(api, "/tts/stream")
    assert list(told) == ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"]
    for kind, schema in told.items():
        files = ["prompt_audio"] if kind == "multipart/form-data" else []
        assert list(schema["properties"]) == [*fields, *files]
        assert schema["required"] == ["text"]
    speed = told["application/json"]["properties"]["speed"]
    assert {"type": "number", "minimum": 0.5, "maximum": 2.0} in speed["anyOf"]


@pytest.mark.parametrize("path", ROUTES)
def test_the_fields_of_the_routes_of_cosyvoice(api: dict[str, Any], path: str) -> None:
    fields, _ = ROUTES[path]
    for kind, schema in bodies(api, path).items():
        assert "form" in kind and set(schema["required"]) == set(schema["properties"]) == set(fields)
        files = {name for name, field in schema["properties"].items() if field.get("format") == "binary"}
        assert files == ({"prompt_wav"} if "prompt_wav" in fields else set())


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/audio/speech", OpenAISpeech), ("/vapi/voice", VapiMessage), ("/jambonz/tts", JambonzTts),
     ("/v1/speak", DeepgramText), ("/v1/text-to-speech/{name}/stream", ElevenLabsText), ("/tts/bytes", CartesiaText)],
)  # fmt: skip
def test_the_fields_of_routes_with_a_model(api: dict[str, Any], path: str, model: Any) -> None:
    (schema,) = bodies(api, path).values()
    assert list(schema["properties"]) == list(model.model_fields)


def test_every_route_that_speaks_may_join_a_call_and_says_that_it_sends_audio(api: dict[str, Any]) -> None:
    for path in SPEAK:
        for verb, operation in api["paths"][path].items():
            assert "call" in [each["name"] for each in operation["parameters"]], (verb, path)
            assert operation["responses"]["200"]["content"]


class PageReader(HTMLParser):
    """The text of a page, and all addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = ""
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.said += f"{data}\n"


def names_in(api: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    schema = resolved(api, schema)
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from names_in(api, field)
    for each in schema.get("anyOf", ()):
        yield from names_in(api, each)


def test_the_page_shows_every_path_and_field_and_needs_no_other_server(api: dict[str, Any]) -> None:
    page = docs_page(api, "/openapi.json")
    reader = PageReader()
    reader.feed(page)
    assert reader.addresses == ["/openapi.json"] and "script" not in reader.tags and "link" not in reader.tags
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    words = reader.said.split("\n")
    n_fields = 0
    for path, operations in api["paths"].items():
        assert path in words
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            names = {name for each in content.values() for name in names_in(api, each["schema"])}
            names |= {each["name"] for each in operation.get("parameters", ())}
            assert names <= set(words), path
            n_fields += len(names)
    assert n_fields > 50


def test_the_page_shows_text_as_text() -> None:
    field = {"type": "string", "description": "<script>x</script>", "default": "<b>"}
    schema = {"type": "object", "properties": {"<i>": field}}
    operation = {"summary": "a < b", "requestBody": {"content": {"a/b": {"schema": schema}}}}
    page = docs_page({"info": {"title": "<T>", "version": "1"}, "paths": {"/<p>": {"post": operation}}}, "/x")
    reader = PageReader()
    reader.feed(page)
    assert not {"script", "i", "b", "p>"} & set(reader.tags)
    assert "<script>x</script>" in reader.said and "a < b" in reader.said and "/<p>" in reader.said
