"""Malicious and broken hubs: the bytes that they can send and the number of attempts are bounded."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import hub_rig
import pytest
from hub_rig import FakeHub, serving

from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2.checkpoint import download
from telephony_tts.engines.cosyvoice2.checkpoint.download import NEEDED, OFFICIAL_REPOS, DownloadProgress, pull
from telephony_tts.engines.hubs import CHUNK_BYTES, HubFile, Listing, Sink
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

pytestmark = pytest.mark.slow

MODEL = "llm.pt"
Sender = Callable[[bytes, Sink, int], None]


class Hub:
    """Sends every file completely, except the model, which `send(content, sink, offset)` sends."""

    def __init__(self, send: Sender, n_bytes: int = 1_000_000, **described: object) -> None:
        self.contents = {name: name.encode() for name in NEEDED} | {MODEL: os.urandom(n_bytes)}
        self._send, self._described = send, described
        self.n_asked = 0

    def listing(self, repo: str, revision: str | None) -> Listing:
        files: Mapping[str, HubFile] = {
            name: HubFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in self.contents.items()
        }
        return Listing(repo, "main", {**files, MODEL: replace(files[MODEL], **self._described)})  # type: ignore[arg-type]

    def read(self, listing: Listing, file: HubFile, part: Sink, offset: int) -> None:
        data = self.contents[file.name]
        if file.name != MODEL:
            part.write(data[offset:])
            return
        self.n_asked += 1
        try:
            self._send(data, part, offset)
        except Exception as error:
            raise EngineUnavailable(f"the connection broke: {error}", retryable=True) from error


def pulled(hub: Hub, directory: Path) -> None:
    pull(directory, hub, "a/b", None, DownloadProgress(io.StringIO()))


def whole(data: bytes, sink: Sink, offset: int) -> None:
    sink.write(data[offset:])


def pieces(n_bytes: int, breaks: bool) -> Sender:
    """Sends `n_bytes` over each connection, which then ends or breaks."""

    def send(data: bytes, sink: Sink, offset: int) -> None:
        sink.write(data[offset : offset + n_bytes])
        if breaks and offset + n_bytes < len(data):
            raise ConnectionError

    return send


def endless(data: bytes, sink: Sink, offset: int) -> None:
    sink.write(data[offset:])
    for _ in range(1000):
        sink.write(bytes(CHUNK_BYTES))
    raise AssertionError("it was not stopped")


# -------------------------------------------------------------------------------- more


@pytest.mark.parametrize("said", [{}, {"size": None}], ids=["announced", "known"])
def test_a_hub_that_sends_too_many_bytes_is_stopped(
    said: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(endless, **said)
    monkeypatch.setattr(download, "KNOWN", {MODEL: (1_000_000, "0" * 64)} if said else {})
    longest = 0
    write = download._CountedSink.write

    def watched(self: download._CountedSink, data: bytes) -> int:
        nonlocal longest
        try:
            return write(self, data)
        finally:
            longest = max(longest, self.tell())

    monkeypatch.setattr(download._CountedSink, "write", watched)
    with pytest.raises(EngineUnavailable, match=r"llm\.pt: the hub sends more than its 1000000 bytes; .*removed"):
        pulled(hub, tmp_path)
    assert hub.n_asked == 1 and longest == 1_000_000 and not list(tmp_path.glob("*llm.pt*"))


def test_a_file_of_unknown_size_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "KNOWN", {})
    monkeypatch.setattr(download, "UNANNOUNCED_BYTES", 1_500_000)
    with pytest.raises(EngineUnavailable, match="more than its 1500000 bytes"):
        pulled(Hub(endless, size=None), tmp_path / "a")
    pulled(Hub(whole, size=None), tmp_path / "b")
    assert (tmp_path / "b" / MODEL).stat().st_size == 1_000_000


@pytest.fixture(params=["huggingface", "modelscope"])
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A pull into `m` with each hub's own client, from a hub on the loopback."""
    import huggingface_hub.constants

    hub = FakeHub(OFFICIAL_REPOS[request.param], {name: name.encode() * 1000 for name in NEEDED})
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name in ("HF_HOME", "MODELSCOPE_HOME", "MODELSCOPE_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(hub):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
        yield ["models", "pull", str(tmp_path / "m"), "--source", request.param]


def test_the_hubs_own_clients_are_stopped(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_sent = 0

    def sends_for_ever(self: hub_rig._Handler, name: str) -> None:
        nonlocal n_sent
        self.send_response(200)
        self.end_headers()
        try:
            while n_sent < 500_000_000:
                n_sent += self.wfile.write(bytes(CHUNK_BYTES))
        except OSError:
            self.close_connection = True

    monkeypatch.setattr(hub_rig._Handler, "_file", sends_for_ever)
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "the hub sends more than its" in error and error.count("\n") == 1 and n_sent < 100_000_000
    assert not [path for path in (tmp_path / "m").rglob("*") if path.is_file()]


def test_the_hubs_own_clients_are_given_up(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_asked = 0

    def gives_a_byte(self: hub_rig._Handler, name: str) -> None:
        nonlocal n_asked
        n_asked += 1
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Range", f"bytes {start}-{start}/{1000 * len(name)}")
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(name.encode()[start % len(name) :][:1])

    monkeypatch.setattr(hub_rig._Handler, "_file", gives_a_byte)
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "could not be fetched" in error and error.count("\n") == 1 and n_asked == 3


# -------------------------------------------------------------------------------- less


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("n_bytes", [0, 1, CHUNK_BYTES - 1])
def test_a_hub_that_sends_almost_nothing_at_a_time_is_given_up(tmp_path: Path, n_bytes: int, breaks: bool) -> None:
    hub = Hub(pieces(n_bytes, breaks))
    with pytest.raises(EngineUnavailable, match=r"llm\.pt|connection broke"):
        pulled(hub, tmp_path)
    assert hub.n_asked == (1 if not breaks and not n_bytes else 3)
    assert not (tmp_path / MODEL).exists()


@pytest.mark.parametrize("breaks", [True, False])
def test_one_chunk_at_a_time_completes_the_file(tmp_path: Path, breaks: bool) -> None:
    hub = Hub(pieces(CHUNK_BYTES, breaks))
    pulled(hub, tmp_path)
    assert hub.n_asked == 16 and (tmp_path / MODEL).read_bytes() == hub.contents[MODEL]


def test_the_end_may_be_shorter_than_a_chunk_and_two_fruitless_attempts_are_allowed(tmp_path: Path) -> None:
    sizes = iter([1, 1, 900_000, 10, 10, 1_000_000])
    hub = Hub(lambda data, sink, offset: pieces(next(sizes), True)(data, sink, offset))
    pulled(hub, tmp_path)
    assert hub.n_asked == 6 and (tmp_path / MODEL).read_bytes() == hub.contents[MODEL]


def test_a_complete_file_is_right_even_if_the_connection_broke_after_it(tmp_path: Path) -> None:
    def send(data: bytes, sink: Sink, offset: int) -> None:
        sink.write(data[offset:] if offset == 2 else data[offset : offset + 1])
        raise ConnectionError

    hub = Hub(send, n_bytes=1000)  # complete at the third attempt, which else would be one too many
    pulled(hub, tmp_path)
    assert hub.n_asked == 3 and (tmp_path / MODEL).read_bytes() == hub.contents[MODEL]


# -------------------------------------------------------------------------------- lies


@pytest.mark.parametrize(
    "said",
    [{"sha256": "../../../x"}, {"sha256": "A" * 64}, {"sha256": "*" * 64}, {"git_sha1": "/etc/x"}, {"size": -1}],
    ids=str,
)
def test_a_description_from_a_hub_cannot_name_other_files(tmp_path: Path, said: dict[str, object]) -> None:
    hub = Hub(whole, **said)
    with pytest.raises(EngineUnavailable, match=r"impossible size or hash for llm\.pt"):
        pulled(hub, tmp_path / "m")
    assert hub.n_asked == 0 and list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------- part


def part_of(hub: Hub, directory: Path) -> Path:
    return download._part_path(directory, hub.listing("a/b", None).files[MODEL])


@pytest.mark.parametrize("to", ["file", "nothing", "folder"])
def test_a_part_that_is_a_link_is_not_followed(tmp_path: Path, to: str) -> None:
    hub, mine, model = Hub(whole), tmp_path / "mine", tmp_path / "m"
    model.mkdir()
    if to == "file":
        mine.write_bytes(b"mine")
    elif to == "folder":
        mine.mkdir()
    part_of(hub, model).symlink_to(mine)
    pulled(hub, model)
    assert (model / MODEL).read_bytes() == hub.contents[MODEL] and not (model / MODEL).is_symlink()
    assert mine.exists() == (to != "nothing")
    assert to != "file" or mine.read_bytes() == b"mine"


def test_a_part_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    hub = Hub(whole)
    os.mkfifo(part_of(hub, tmp_path))
    pulled(hub, tmp_path)
    assert (tmp_path / MODEL).read_bytes() == hub.contents[MODEL]


def test_a_part_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    hub = Hub(whole)
    part_of(hub, tmp_path).mkdir()
    with pytest.raises(ConfigError, match="cannot be written to"):
        pulled(hub, tmp_path)
