"""The lexicons in the console: read them, test a sentence with a text that is not saved yet, and save it.

Whoever has a token reads those that its key may use. Only supervisors test and save a text: to compile it may take
seconds, in which other calls wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from telephony_tts.http_api.console_calls import need_supervisor
from telephony_tts.http_api.request_key import REQUEST_KEY
from telephony_tts.ops import lexicon_files
from telephony_tts.ops.lexicon_files import MAX_FILE_BYTES, LexiconFiles, version_of
from telephony_tts.runtime import logs
from telephony_tts.runtime.daemon_pool import in_own_thread
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError
from telephony_tts.session.lexicons import CallLexicon, read_sentences

LEXICONS = "/console/api/lexicons"
_NO_STORE = {"Cache-Control": "no-store"}
_HERE = "this text"
"""How errors name a text that is in no file."""

_log = logs.get(__name__)


class LexiconText(BaseModel):
    """The content of a lexicon file."""

    text: str = Field(max_length=MAX_FILE_BYTES)


class EditedLexicon(LexiconText):
    """The same, and the version of the text that was edited."""

    version: str = Field(max_length=100)


class LexiconTest(LexiconText):
    """The content of a lexicon file, and a sentence to read with it."""

    sentence: str = Field(default="", max_length=2_000)
    lang: str | None = Field(default=None, max_length=35)


class ConsoleLexicons:
    """The routes about lexicons of one server. `files` is None if it has none."""

    def __init__(self, files: LexiconFiles | None) -> None:
        self._files = files
        self._testing = asyncio.Lock()
        """Held while a text is compiled: several at a time would slow down the calls even more."""

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/api/lexicons", self._list, methods=["GET"])
        router.add_api_route("/api/lexicons/check", self._check, methods=["POST"])
        router.add_api_route("/api/lexicons/{name}", self._read, methods=["GET"])
        router.add_api_route("/api/lexicons/{name}", self._save, methods=["PUT"])

    async def _list(self) -> Response:
        shelf = {} if self._files is None else self._files.shelf
        listed = [{"name": name, "entries": shelf[name].n_entries} for name in shelf if self._has(name)]
        return JSONResponse({"lexicons": listed}, headers=_NO_STORE)

    async def _check(self, test: LexiconTest, request: Request) -> Response:
        """What is wrong with the text, or how the sentence is read with it."""
        need_supervisor(request)
        async with self._testing:
            return JSONResponse(await asyncio.to_thread(_tested, test), headers=_NO_STORE)

    async def _read(self, name: str) -> Response:
        text = await asyncio.to_thread(self._known().text, name) if self._has(name) else _absent(name)
        return JSONResponse({"text": text, "version": version_of(text)}, headers=_NO_STORE)

    async def _save(self, name: str, wanted: EditedLexicon, request: Request) -> Response:
        """Write the file, if the server can use it and nobody else has changed it. Calls that begin now use it."""
        need_supervisor(request)
        if not self._has(name):
            _absent(name)
        async with self._testing:
            n_entries, version = await in_own_thread(self._known().save, name, wanted.text, wanted.version)
        _log.info("lexicon_saved", lexicon=name, entries=n_entries)
        return JSONResponse({"entries": n_entries, "version": version}, headers=_NO_STORE)

    def _has(self, name: str) -> bool:
        """Whether there is such a lexicon, and the request's key may use it."""
        return self._files is not None and name in self._files.shelf and REQUEST_KEY.get().allows_lexicon(name)

    def _known(self) -> LexiconFiles:
        assert self._files is not None
        return self._files


def _absent(name: str) -> str:
    raise TelephonyTTSError(f"there is no lexicon {name[:100]}; lexicons.files names them", code="not_found")


def _tested(test: LexiconTest) -> dict[str, Any]:
    try:
        lexicon = lexicon_files.compiled(lexicon_files.parse(test.text, _HERE), _HERE)
    except ConfigError as error:
        return {"entries": 0, "problems": error.message.splitlines(), "sentences": [], "changes": []}
    read = CallLexicon({_HERE: lexicon}, {}, {}, (_HERE,))
    found = list(read_sentences(test.sentence, read, test.lang))
    sentences, changes = [sentence for sentence, _ in found], [line for _, lines in found for line in lines]
    return {"entries": lexicon.n_entries, "problems": [], "sentences": sentences, "changes": changes}
