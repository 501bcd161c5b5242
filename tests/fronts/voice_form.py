"""The body of a request that adds a voice."""

from __future__ import annotations

import uuid
from collections.abc import Mapping


def voice_form(fields: Mapping[str, str], recording: bytes) -> tuple[str, bytes]:
    """(the content type, the body) of a form with these fields and a recording."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="audio"; filename="a.wav"\r\n\r\n'.encode()
    body = b"".join([*parts, head, recording, f"\r\n--{boundary}--\r\n".encode()])
    return f"multipart/form-data; boundary={boundary}", body
