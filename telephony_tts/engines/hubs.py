"""The two hubs that offer models. A download asks a hub for a list of files, and for a file from an offset on.

The hubs' own clients handle endpoints, mirrors, proxies and tokens. They are not asked for whole files, because they
treat an interrupted file differently: one deletes it, the other keeps it in another place.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, how_to_get

CHUNK_BYTES = 1 << 16
"""Bytes that are written at a time. An unfinished chunk is lost when the connection breaks, so large chunks would never
arrive over a line that breaks often."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """What a hub reports about a file; None where it reports nothing. Hashes are lower-case hexadecimal."""

    name: str
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    """For a small file that is in git itself: SHA-1 over "blob", the length, a zero byte and the content."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one revision, a commit if the hub reports one: all files are of one release."""

    repo: str
    revision: str
    files: Mapping[str, HubFile]


class Sink(Protocol):
    """The methods of a file that a hub's client needs to append to it."""

    def write(self, data: bytes, /) -> int: ...

    def tell(self) -> int: ...

    def seek(self, offset: int, /) -> int: ...

    def truncate(self) -> int: ...


class Hub(Protocol):
    """A source of models. Every error is EngineUnavailable, and `retryable` if another attempt may succeed."""

    def listing(self, repo: str, revision: str | None) -> Listing: ...

    def read(self, listing: Listing, file: HubFile, part: Sink, offset: int) -> None:
        """Appends the file from `offset` on to `part`, which holds the bytes before it.

        Received bytes stay in `part` after an error. A hub without offsets truncates `part` and starts again.
        """


def open_hub(source: str) -> Hub:
    """The hub of a name on the command line. Raises ConfigError if its client is not installed."""
    hubs: dict[str, tuple[str, type[HuggingFace] | type[ModelScope]]] = {
        "huggingface": ("huggingface_hub", HuggingFace),
        "modelscope": ("modelscope_hub", ModelScope),
    }
    package, hub = hubs[source]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"--source {source} needs the package {package}: {how_to_get('hub')}")
    return hub()


class HuggingFace:
    """The Hugging Face hub, or the mirror of HF_ENDPOINT; with HF_TOKEN or a saved login for private repositories."""

    def __init__(self) -> None:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils import disable_progress_bars

        constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES  # its default is 10 MB
        disable_progress_bars()
        # It logs each broken connection, but the download continues.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        self._api = HfApi()

    def listing(self, repo: str, revision: str | None) -> Listing:
        try:
            info = self._api.model_info(repo, revision=revision, files_metadata=True, timeout=30.0)
        except Exception as error:  # the client's errors, and those of the HTTP library that it uses in this release
            raise self._failure(error, repo, revision) from error
        files = {}
        for sibling in info.siblings or []:
            sha256 = sibling.lfs.sha256.lower() if sibling.lfs is not None else None
            git_sha1 = (sibling.blob_id or None) if sibling.lfs is None else None
            files[sibling.rfilename] = HubFile(sibling.rfilename, sibling.size, sha256, git_sha1)
        return Listing(repo, info.sha or revision or "main", files)

    def read(self, listing: Listing, file: HubFile, part: Sink, offset: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(listing.repo, file.name, revision=listing.revision, endpoint=self._api.endpoint)
        # An offset has no meaning in a compressed response.
        headers = {**build_hf_headers(library_name="telephony-tts"), "Accept-Encoding": "identity"}
        try:
            http_get(url, part, resume_size=offset, headers=headers, expected_size=file.size)
        except Exception as error:
            raise self._failure(error, listing.repo, listing.revision, file.name) from error

    def _failure(self, error: Exception, repo: str, revision: str | None, file: str = "") -> EngineUnavailable:
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        at = f"{self._api.endpoint} has no"
        if isinstance(error, GatedRepoError):
            return EngineUnavailable(f"{repo} needs permission: ask for it on its page, then set HF_TOKEN")
        if isinstance(error, RepositoryNotFoundError):
            return EngineUnavailable(f"{at} model {repo}, or it is private and HF_TOKEN is not set: see --repo")
        if isinstance(error, RevisionNotFoundError):
            return EngineUnavailable(f"{at} revision {revision} of {repo}: see --revision")
        if isinstance(error, EntryNotFoundError):
            return EngineUnavailable(f"{at} file {file} in {repo} at {revision}")
        if isinstance(error, HFValidationError):
            return EngineUnavailable(f"{repo!r} is not a repository: expected OWNER/NAME")
        hint = "HF_ENDPOINT names a mirror, --source modelscope another hub"
        return _broken_off(error, self._api.endpoint, file, hint)


class ModelScope:
    """The ModelScope hub, or the address of MODELSCOPE_ENDPOINT."""

    def __init__(self) -> None:
        from modelscope_hub import HubApi, HubConfig

        logging.getLogger("modelscope_hub").setLevel(logging.ERROR)
        self._api = HubApi(HubConfig())
        self._endpoint: str = self._api.legacy.endpoint

    def listing(self, repo: str, revision: str | None) -> Listing:
        try:
            found = self._api.list_repo_files(repo, "model", revision=revision)
        except Exception as error:
            raise self._failure(error, repo, revision) from error
        files = {
            file.path: HubFile(file.path, file.size or None, file.sha256.lower() if file.sha256 else None)
            for file in found
            if file.type != "tree"
        }
        return Listing(repo, revision or "master", files)

    def read(self, listing: Listing, file: HubFile, part: Sink, offset: int) -> None:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            with self._api.legacy.download_stream(
                listing.repo, "model", file.name, listing.revision, headers=headers
            ) as response:
                if offset and response.status_code != 206:
                    part.seek(0)
                    part.truncate()
                for chunk in response.iter_content(CHUNK_BYTES):
                    part.write(chunk)
        except Exception as error:
            raise self._failure(error, listing.repo, listing.revision, file.name) from error

    def _failure(self, error: Exception, repo: str, revision: str | None, file: str = "") -> EngineUnavailable:
        from modelscope_hub import InvalidParameter, NotExistError, PermissionDeniedError

        what = f"file {file} in {repo}" if file else f"model {repo}"
        at = f" at {revision}" if revision else ""
        if isinstance(error, (NotExistError, PermissionDeniedError)):
            return EngineUnavailable(f"{self._endpoint} has no {what}{at}, or it is private: see --repo and --revision")
        if isinstance(error, InvalidParameter):
            return EngineUnavailable(f"{repo!r} is not a repository: expected OWNER/NAME")
        hint = "MODELSCOPE_ENDPOINT names another address, --source huggingface another hub"
        return _broken_off(error, self._endpoint, file, hint)


def _broken_off(error: Exception, endpoint: str, file: str, hint: str) -> EngineUnavailable:
    status: Any = getattr(getattr(error, "response", error), "status_code", None)
    reason = f"HTTP status {status}" if status else _reason(error)
    doing = f"{file} could not be fetched" if file else "it could not be reached"
    may_pass = not status or status == 429 or status >= 500
    return EngineUnavailable(f"{endpoint}: {doing} ({reason}); is there a network? {hint}", retryable=may_pass)


def _reason(error: BaseException) -> str:
    """The system's message at the root of the error, such as "Connection refused", else the error's first line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return (str(error).splitlines() or [""])[0] or type(error).__name__
