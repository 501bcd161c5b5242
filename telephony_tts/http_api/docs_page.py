"""The page `/docs`: the API's description as plain HTML, without scripts and without addresses of other servers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Schema = Mapping[str, Any]

_STYLE = """
body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h2{margin-top:2em;border-bottom:1px solid #ccc} code{font:14px monospace}
.method{font-weight:bold;text-transform:uppercase} table{border-collapse:collapse;margin:.5em 0}
th,td{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}
"""
_VERBS = ("get", "post", "put", "patch", "delete")


def docs_page(api: Schema, schema_path: str) -> str:
    """The page of an OpenAPI description, which itself is at `schema_path`."""
    title = escape(f"{api['info']['title']} {api['info']['version']}")
    link = f'<p>For programs: <a href="{escape(schema_path)}">{escape(schema_path)}</a></p>'
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    body = "".join(_groups(api))
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>{link}{body}</body></html>\n'


def _groups(api: Schema) -> Iterable[str]:
    """The operations by their first tags, in the order in which these come."""
    groups: dict[str, list[str]] = {}
    for path, operations in api["paths"].items():
        for verb in _VERBS:
            if (operation := operations.get(verb)) is not None:
                tag = next(iter(operation.get("tags", ())), "other")
                groups.setdefault(tag, []).append("".join(_operation(api, verb, path, operation)))
    for tag, shown in groups.items():
        yield f"<h2>{escape(tag)}</h2>{''.join(shown)}"


def _operation(api: Schema, verb: str, path: str, operation: Schema) -> Iterable[str]:
    yield f'<h3><span class="method">{verb}</span> <code>{escape(path)}</code></h3>'
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>"
    if parameters := operation.get("parameters"):
        rows = [
            (each["name"], each.get("required", False), {**each["schema"], "description": _about(each)})
            for each in parameters
        ]
        yield "<p>In the address:</p>" + _table(api, rows)
    bodies = operation.get("requestBody", {}).get("content", {})
    told: dict[str, list[str]] = {}
    for kind, content in bodies.items():
        told.setdefault("".join(_fields(api, content["schema"])), []).append(kind)
    for fields, kinds in told.items():
        yield f"<p>As the body, {escape(' or '.join(kinds))}:</p>{fields}"


def _about(parameter: Schema) -> str:
    text: str = parameter.get("description") or parameter["schema"].get("description", "")
    return text


def _fields(api: Schema, schema: Schema) -> Iterable[str]:
    schema = _resolved(api, schema)
    required = schema.get("required", ())
    yield _table(api, [(name, name in required, field) for name, field in schema.get("properties", {}).items()])


def _table(api: Schema, rows: Sequence[tuple[str, bool, Schema]]) -> str:
    lines = []
    for name, is_required, field in rows:
        about = escape(field.get("description", ""))
        needed = "required" if is_required else _default(field)
        lines.append(f"<tr><td><code>{escape(name)}</code></td><td>{_kind(api, field)}</td><td>{needed}</td>")
        lines.append(f"<td>{about}</td></tr>")
    head = "<tr><th>name</th><th>value</th><th>default</th><th></th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None else f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"


def _kind(api: Schema, field: Schema) -> str:
    """What a field may be, in words."""
    field = _resolved(api, field)
    if choices := field.get("anyOf") or field.get("oneOf"):
        kinds = [_kind(api, each) for each in choices if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field or "const" in field:
        return ", ".join(f"<code>{escape(str(each))}</code>" for each in field.get("enum", [field.get("const")]))
    if "properties" in field:
        return "".join(_fields(api, field))
    kind = "file" if field.get("format") == "binary" else str(field.get("type", "any"))
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None:
        kind += f", {least:g} to {most:g}" if isinstance(least, float) else f", {least} to {most}"
    if (length := field.get("maxLength")) is not None:
        kind += f" of at most {length} characters"
    return escape(kind)


def _resolved(api: Schema, schema: Schema) -> Schema:
    """The schema that a reference stands for."""
    while (reference := schema.get("$ref")) is not None:
        found: Any = api
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    return schema
