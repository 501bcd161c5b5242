"""Whose a call is, at every door and in every order: the key of its first bot owns it, whatever brought the caller."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from binary_carriers import ID, PCMU
from http_peer import ask, ask_json
from media_peer import MEDIA_START, leg, waiting_asterisk
from rig import Rig, Tones, run, serving, until
from test_vendor_rejoin import DOORS
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request
from wire_peer import WireRequest, WireSocket

from telephony_tts.app.config import doors
from telephony_tts.doors.twilio import codec as twilio
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.transport.call import Call
from telephony_tts.transport.door import Doors

pytestmark = pytest.mark.slow

SECRET, PUBLIC = "the carrier's secret", "wss://tts.example"
TEXTS = ("Baba.", "Dede.", "Fifi.", "Gogo.", "Kiki.", "Lulu.", "Mimi.")
"""What bots say, each something else: a media leg of another codec has the speech before it made again."""
NONE, PLAIN, ACME, OTHER = "none", "plain", "acme", "other"
"""No key, a token without a name, and two named keys."""
NAMES = {NONE: "", PLAIN: "", ACME: ACME, OTHER: OTHER}

TABLE = (
    # first bot, second bot, the second gets in when the first is away, whose call it is then
    (PLAIN, PLAIN, True, ""),
    (PLAIN, ACME, False, ""),
    (PLAIN, OTHER, False, ""),
    (ACME, PLAIN, True, ACME),
    (ACME, ACME, True, ACME),
    (ACME, OTHER, False, ACME),
    (OTHER, PLAIN, True, OTHER),
    (OTHER, ACME, False, OTHER),
    (OTHER, OTHER, True, OTHER),
)
"""The key of the media leg is in no row: it does not matter once a bot has come."""

LEGS = (NONE, PLAIN, ACME, OTHER)
ORDERS = ("media first", "bot first")


def bearer(key: str) -> dict[str, str]:
    return {} if key == NONE else {"Authorization": f"Bearer {key}-token"}


def ring(*names: str, **limits: Any) -> KeyRing:
    return KeyRing(("plain-token",), [Key(name, digest_of(f"{name}-token".encode()), **limits) for name in names])


# ------------------------------------------------------------------------- doors


def _json_start(**fields: Any) -> list[dict[str, Any] | str]:
    return [{"event": "connected"}, {"event": "start", "sequenceNumber": "1", "sequence_number": "1", **fields}]


def _ulaw(encoding: str = "audio/x-mulaw", **more: Any) -> dict[str, Any]:
    return {"encoding": encoding, "sampleRate": 8000, "channels": 1, **more}


def _twilio(call: str) -> list[dict[str, Any] | str]:
    start = {"streamSid": "MZ1", "callSid": call, "tracks": ["inbound"], "mediaFormat": _ulaw()}
    return _json_start(streamSid="MZ1", start=start)


def _telnyx(call: str) -> list[dict[str, Any] | str]:
    start = {"call_control_id": call, "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1}}
    return _json_start(stream_id="MZ1", start=start)


def _plivo(call: str) -> list[dict[str, Any] | str]:
    start = {"callId": call, "streamId": "MZ1", "tracks": ["inbound"], "mediaFormat": _ulaw()}
    return _json_start(streamId="MZ1", start=start, extra_headers="{}")[1:]


def _exotel(call: str) -> list[dict[str, Any] | str]:
    encoding = {"encoding": "raw/slin", "sample_rate": "8000", "bit_rate": "128kbps"}
    return _json_start(stream_sid="MZ1", start={"stream_sid": "MZ1", "call_sid": call, "media_format": encoding})


def _genesys(call: str) -> list[dict[str, Any] | str]:
    about = {"organizationId": "o", "conversationId": call, "participant": {"id": "p"}, "media": [PCMU]}
    opened = {"version": "2", "type": "open", "id": ID, "seq": 1, "serverseq": 0, "position": "PT0S"}
    return [{**opened, "parameters": about}]


TRACKS = [{"name": "inbound", "mediaFormat": {"encoding": "PCMU", "sampleRate": 8000}}]
MEDIA: dict[str, Callable[[str], list[dict[str, Any] | str]]] = {
    "native": lambda call: [{"type": "start", "codec": "ulaw", "rate_hz": 8000, "call": call}],
    "twilio": _twilio,
    "telnyx": _telnyx,
    "plivo": _plivo,
    "signalwire": _twilio,
    "exotel": _exotel,
    "asterisk": lambda call: [{**MEDIA_START, "channel_id": call}],
    "freeswitch": lambda call: [{"uuid": "u1", "rate": 8000, "call": call}],
    "vonage": lambda call: [{"event": "websocket:connected", "content-type": "audio/l16;rate=8000", "call": call}],
    "genesys": _genesys,
    "jambonz": lambda call: [{"callSid": call, "sampleRate": 8000, "from": "+1", "to": "+2"}],
    "bandwidth": lambda call: [
        {"eventType": "start", "metadata": {"callId": call, "streamId": "s1", "tracks": TRACKS}}
    ],
}
"""The first messages of each media door. Twilio's signature lets a leg in without a key; see `media_leg`."""

Messages = Callable[[str], list[dict[str, Any]]]
VENDORS: dict[str, tuple[str, Messages]] = {
    **{name: (f"/calls/{{}}{path}", messages) for name, (path, messages) in DOORS.items()},
    "jambonz": ("/calls/{}/jambonz/tts?voice=tone", lambda text: [{"type": "stream", "text": text}, {"type": "flush"}]),
    # The one door whose key may come in a message; see `bot`.
    "elevenlabs stream": (
        "/calls/{}/v1/text-to-speech/tone/stream-input",
        lambda text: [{"text": " "}, {"text": f"{text} ", "flush": True}],
    ),
}
SOCKETS: dict[str, tuple[str, Messages]] = {
    "stream": ("/v1/stream?call={}", lambda text: [{"type": "say", "text": text}]),
    **VENDORS,
}
"""What a bot sends to say a text."""

_RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}
_TONE = {"mode": "id", "id": "tone"}
HTTP: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "http": ("/calls/{}/tts/stream", lambda text: {"text": text}),
    "openai over http": (
        "/calls/{}/v1/audio/speech", lambda text: {"input": text, "voice": "tone", "response_format": "pcm"},
    ),
    "deepgram over http": ("/calls/{}/v1/speak", lambda text: {"text": text}),
    "elevenlabs over http": (
        "/calls/{}/v1/text-to-speech/tone?output_format=pcm_24000", lambda text: {"text": text},
    ),
    "elevenlabs stream over http": ("/calls/{}/v1/text-to-speech/tone/stream", lambda text: {"text": text}),
    "cartesia over http": (
        "/calls/{}/tts/bytes",
        lambda text: {"model_id": "sonic", "transcript": text, "voice": _TONE, "output_format": _RAW},
    ),
    "vapi over http": (
        "/calls/{}/vapi/voice", lambda text: {"message": {"type": "voice-request", "text": text, "sampleRate": 16_000}},
    ),
    "jambonz over http": ("/calls/{}/jambonz/tts", lambda text: {"text": text, "voice": "default"}),
    "cosyvoice over http": ("/inference_sft?call={}", lambda text: {"tts_text": text, "spk_id": "tone"}),
    "cosyvoice instruct over http": (
        "/inference_instruct?call={}", lambda text: {"tts_text": text, "spk_id": "tone", "instruct_text": "softly"},
    ),
}  # fmt: skip
BOTS = [*SOCKETS, *HTTP]
RETURNING = [*VENDORS, *HTTP]
"""Doors whose bot may leave a call without ending it."""


class MediaLeg(WireSocket):
    """A caller's side that has played all that it was sent at once, where it says so in JSON."""

    def came(self, data: bytes) -> None:
        n_before = len(self.texts)
        super().came(data)
        for text in self.texts[n_before:]:
            with suppress(ValueError):
                self._report(json.loads(text))

    def _report(self, said: dict[str, Any]) -> None:
        reports: list[dict[str, Any]] = []
        match said:
            case {"type": "mark", "data": {"name": name}}:  # jambonz
                reports = [{"type": "mark", "data": {"name": name, "event": "playout"}}]
            case {"event": "mark"} | {"type": "mark"}:
                reports = [said]
            case {"event": "checkpoint", "name": name}:
                reports = [{"event": "playedStream", "streamId": "MZ1", "name": name}]
            case {"type": "streamAudio", "data": {"id": name}}:
                reports = [{"esl": what, "file": name} for what in ("playing", "played")]
            case {"action": "notify", "payload": name}:
                reports = [{"event": "websocket:notify", "payload": name}]
            case {"action": "clear"}:
                reports = [{"event": "websocket:cleared"}]
            case {"command": "MARK_MEDIA", "correlation_id": name}:
                reports = [{"event": "MEDIA_MARK_PROCESSED", "correlation_id": name}]
            case {"command": "GET_STATUS"}:
                reports = [{"event": "STATUS", "queue_length": 0, "media_paused": False}]
        for report in reports:
            asyncio.get_running_loop().call_soon(self.tell, json.dumps(report))


def media_leg(rig: Rig, door: str, key: str, call: str) -> MediaLeg:
    """A media leg with this key. Without one it is Twilio's, who signs."""
    path, headers = f"/media/{door}", bearer(key)
    if key == NONE:
        path, door = "/media/twilio", "twilio"
        headers = {"X-Twilio-Signature": twilio.signature(SECRET, f"{PUBLIC}{path}")}
    elif door == "twilio":
        # Its handshake needs the signature, so the key comes as a parameter.
        headers = {"X-Twilio-Signature": twilio.signature(SECRET, f"{PUBLIC}{path}")}
        messages = _twilio(call)
        assert isinstance(messages[1], dict)
        messages[1]["start"]["customParameters"] = {"token": f"{key}-token"}
        return MediaLeg(rig, path, headers, *messages)
    return MediaLeg(rig, path, headers, *MEDIA[door](call))


Peer = WireSocket | WireRequest


def bot(rig: Rig, door: str, key: str, call: str, text: str) -> Peer:
    """A bot that says a text in the call."""
    if door in HTTP:
        path, body = HTTP[door]
        return WireRequest(rig, path.format(call), bearer(key), body(text))
    path, make = SOCKETS[door]
    headers, messages = bearer(key), make(text)
    if door == "elevenlabs stream" and headers:
        messages[0] |= {"xi_api_key": f"{key}-token"}
        headers = {}
    return WireSocket(rig, path.format(call), headers, *messages)


def is_refused(peer: Peer) -> bool:
    return peer.status == 409 if isinstance(peer, WireRequest) else peer.close_code == 4409


async def rounds(true: Callable[[], object], what: str, within_s: float = 8) -> None:
    """Wait for a condition by looking at it in each round of the loop."""
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0)


# ------------------------------------------------------------------- the table


@dataclass
class Scene:
    """One call, and what was found wrong with it."""

    rig: Rig
    keys: KeyRing
    name: str
    about: tuple[object, ...]
    wrong: list[tuple[object, ...]] = field(default_factory=list)
    texts: list[str] = field(default_factory=lambda: list(TEXTS))
    """Those that were not said yet."""
    since: int = 0

    def __post_init__(self) -> None:
        self.since = len(self.rig.engine.spoken)  # type: ignore[attr-defined]

    @property
    def call(self) -> Call | None:
        return self.rig.server.registry.find(self.name)

    @property
    def spoken(self) -> list[str]:
        """What bots have said in this call so far."""
        return self.rig.engine.spoken[self.since :]  # type: ignore[attr-defined, no-any-return]

    @property
    def has_bot(self) -> bool:
        return self.call is not None and self.call.bot is not None

    def expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.wrong.append((*self.about, what, found, wanted))

    def belongs_to(self, owner: str, when: str) -> None:
        """What the console shows, and for which key the call counts."""
        shown = [each["key"] for each in self.rig.server.activity()["calls"] if each["call"] == self.name]
        self.expect(f"owner {when}", shown, [owner])
        self.expect(f"counts {when}", self.rig.server.registry.calls_by_key(), {owner: 1} if owner else {})

    async def has_caller(self) -> None:
        await rounds(lambda: self.call is not None and self.call.media is not None, f"{self.about}: no caller")

    def used(self, before: dict[str, int]) -> dict[str, int]:
        """How many texts each key has said since then. Some protocols put a space behind a text."""
        today = self.keys.characters.today()
        return {name: n // len(TEXTS[0]) for name in today if (n := today[name] - before.get(name, 0))}

    async def speaks(self, door: str, key: str, gets_in: bool, when: str) -> Peer:
        """A bot comes and says a text. Its characters count for its key, and for no key if it is refused."""
        before, text = dict(self.keys.characters.today()), self.texts.pop()
        peer = bot(self.rig, door, key, self.name, text)
        await rounds(lambda: text in self.spoken or is_refused(peer), f"{self.about} {when}: undecided")
        self.expect(f"is refused {when}", is_refused(peer), not gets_in)
        self.expect(f"characters {when}", self.used(before), {NAMES[key]: 1} if gets_in and NAMES[key] else {})
        return peer

    async def leave(self, *peers: Peer) -> None:
        """The bots go. Their call stays if they may come back."""
        for peer in peers:
            peer.leave()
        await rounds(lambda: not self.has_bot, f"{self.about}: a bot is there")


Case = tuple[tuple[str, str], tuple[str, str], str, tuple[str, str, bool, str]]


async def play(scene: Scene, case: Case) -> None:
    """The first bot and the media leg come in this order, and the second bot tries to take the call. When the first has
    left, the second tries again. Then the first comes back."""
    media, doors, order, (first, second, gets_in, owner) = case
    if order == "media first":
        caller = media_leg(scene.rig, *media, scene.name)
        await rounds(lambda: scene.call is not None, f"{scene.about}: no call")
        scene.belongs_to(NAMES[media[1]], "before a bot came")
        peer = await scene.speaks(doors[0], first, True, "first")
    else:
        peer = bot(scene.rig, doors[0], first, scene.name, scene.texts.pop())
        await rounds(lambda: scene.has_bot, f"{scene.about}: no bot")
        scene.belongs_to(NAMES[first], "before its caller came")
        caller = media_leg(scene.rig, *media, scene.name)
    await scene.has_caller()
    scene.belongs_to(NAMES[first], "with its first bot")
    if doors[0] in SOCKETS:
        (await scene.speaks(doors[1], second, False, "beside the first")).leave()
        scene.belongs_to(NAMES[first], "with its first bot still")
    await scene.leave(peer)
    scene.belongs_to(NAMES[first], "while its bot is away")
    visitor = await scene.speaks(doors[1], second, gets_in, "second")
    scene.belongs_to(owner, "behind the second")
    await scene.leave(visitor)
    if scene.call is not None:  # our own bot has ended it
        await scene.speaks(doors[0], first, True, "back")
        scene.belongs_to(owner, "when its bot is back")
    caller.leave()
    await rounds(lambda: not len(scene.rig.server.registry), f"{scene.about}: the call does not end")


def every_case() -> list[Case]:
    """All keys and orders at three doors; all pairs of doors for bots with three rows each; all media doors with all
    rows."""
    legs, doors = product(["native"], LEGS), product(["deepgram", "http"], ["stream", "deepgram", "http"])
    cases: set[Case] = set(product(legs, doors, ORDERS, TABLE))
    for n, (first, second) in enumerate(product(RETURNING, BOTS)):
        for row in (TABLE[(n + third) % len(TABLE)] for third in (0, 3, 6)):
            cases.add((("native", LEGS[n % 4]), (first, second), ORDERS[n // 4 % 2], row))
    for n, (door, key, row) in enumerate(product(MEDIA, LEGS, TABLE)):
        cases.add(((door, key), (RETURNING[n % len(RETURNING)], BOTS[n % len(BOTS)]), ORDERS[n % 2], row))
    return sorted(cases)


@asynccontextmanager
async def keyed(*names: str, **how: Any) -> AsyncIterator[tuple[Rig, KeyRing]]:
    """A server with these named keys and the token `plain-token`. Twilio signs."""
    keys = ring(*(names or (ACME, OTHER)))
    how = {"twilio_auth_token": SECRET, "public_url": PUBLIC, "calls": 1_000, **how}
    async with serving(Tones(), keys=keys, **how) as rig:
        yield rig, keys


_PARTS = 4
"""Parts of a long test, which may run in several processes."""


def test_the_table_has_every_door() -> None:
    assert {f"/media/{door}" for door in MEDIA} == set(Doors(doors()).media)
    vendors = {Doors(doors()).vendor_of(path.format("c")) for path, _ in SOCKETS.values()}
    assert vendors == {None, *Doors(doors()).vendors}, "our own door is no vendor's"

    async def main() -> None:
        async with serving() as rig:
            described = (await ask(rig.port, "GET", "/openapi.json")).json()["paths"]
            joining = {
                path.replace("{name}", "tone")
                for path, operations in described.items()
                if any(parameter["name"] == "call" for parameter in operations.get("post", {}).get("parameters", ()))
            }
            paths = {path.removeprefix("/calls/{}").partition("?")[0] for path, _ in HTTP.values()}
            with_recordings = {"/inference_zero_shot", "/inference_cross_lingual", "/inference_instruct2"}
            assert joining == paths | with_recordings, "those need CosyVoice2, and join as the other two do"

    run(main)


@pytest.mark.parametrize("part", range(_PARTS))
def test_the_table_at_every_door_and_in_every_order(part: int) -> None:
    cases, wrong = every_case()[part::_PARTS], list[tuple[object, ...]]()

    async def main() -> None:
        async with keyed() as (rig, keys):
            for n, case in enumerate(cases):
                scene = Scene(rig, keys, f"c{n}", case)
                await play(scene, case)
                wrong.extend(scene.wrong)

    run(main, within_s=120)
    assert not wrong, f"{len({each[:4] for each in wrong})} of {len(cases)} cases: {wrong[:10]}"


# -------------------------------------------------------------------- the races

_SETTLED = 40
"""After so many rounds of the loop a door has decided."""


async def race(scene: Scene, draw: random.Random, leg_key: str, bots: list[tuple[str, str]]) -> None:
    """Two bots and a media leg come at almost the same time. Then all bots leave, and three try to come back."""
    texts = scene.texts.pop(), scene.texts.pop()
    before = dict(scene.keys.characters.today())
    peers: dict[int, Peer] = {}
    caller: MediaLeg | None = None
    gaps: list[int] = []
    order = draw.sample((0, 1, 2), 3)
    for who in order:
        if who == 2:
            caller = media_leg(scene.rig, "native", leg_key, scene.name)
        else:
            peers[who] = bot(scene.rig, *bots[who], scene.name, texts[who])
        gaps.append(draw.choice((0, 0, 1, 2, 3, 5, 8, _SETTLED)))
        for _ in range(gaps[-1]):
            await asyncio.sleep(0)
    came = list(peers)

    def in_order() -> list[int]:
        """The bots that were let in."""
        return [texts.index(text) for text in dict.fromkeys(scene.spoken)]

    await rounds(
        lambda: len(in_order()) + sum(map(is_refused, peers.values())) == 2, f"{scene.about}: a bot is undecided"
    )
    assert caller is not None
    await scene.has_caller()
    winner, *others = in_order()
    owner = NAMES[bots[winner][1]]
    scene.belongs_to(owner, "in the race")
    scene.expect("others that got in", [who for who in others if NAMES[bots[who][1]]], [])
    wanted = [NAMES[bots[who][1]] for who in (winner, *others)]
    scene.expect("whose characters", set(scene.used(before)), {name for name in wanted if name})
    is_apart = sum(gaps[order.index(came[0]) : order.index(came[1])]) >= _SETTLED
    if bots[0][0] == bots[1][0] or is_apart:
        scene.expect("who came first", winner, came[0])
    await scene.leave(*peers.values())
    if scene.call is not None:
        for key in (leg_key, *(key for _, key in bots), bots[winner][1]):
            if key != NONE:
                gets_in = NAMES[key] in ("", owner)
                await scene.leave(await scene.speaks("http", key, gets_in, f"later with {key}"))
                scene.belongs_to(owner, "later")
    caller.leave()
    await rounds(lambda: not len(scene.rig.server.registry), f"{scene.about}: the call does not end")


@pytest.mark.parametrize("part", range(_PARTS))
def test_a_thousand_races_of_two_bots_and_a_media_leg(part: int) -> None:
    wrong, n_races = list[tuple[object, ...]](), 1_000 // _PARTS

    async def main() -> None:
        async with keyed() as (rig, keys):
            for n in range(n_races):
                draw = random.Random(1_000 * part + n)
                leg_key, (one, two) = draw.choice(LEGS), draw.sample((PLAIN, ACME, OTHER), 2)
                doors = [draw.choice(BOTS)] * 2 if draw.random() < 0.3 else draw.choices(BOTS, k=2)
                bots = list(zip(doors, (one, two), strict=True))
                scene = Scene(rig, keys, f"r{n}", (part, n, leg_key, *bots))
                await race(scene, draw, leg_key, bots)
                wrong.extend(scene.wrong)

    run(main, within_s=120)
    assert not wrong, f"{len({each[:2] for each in wrong})} of {n_races} races: {wrong[:10]}"


# ------------------------------------------------------------ over real sockets

START = {"type": "start", "codec": "ulaw", "rate_hz": 8000, "call": "c"}


async def asked(rig: Rig, key: str, text: str = "Hello.") -> int:
    """The status of a request that speaks in the call."""
    return (await ask_json(rig.port, "/calls/c/tts/stream", {"text": text}, **bearer(key))).status


@pytest.mark.parametrize("leg_key", ["pbx", PLAIN])
def test_requests_over_http_behind_the_first(leg_key: str) -> None:
    """Pinned: the second request of the bot's key got 409, and the key of the media leg got in."""

    async def main() -> None:
        async with keyed(ACME, "pbx") as (rig, keys), leg(rig, "/media/native", **bearer(leg_key)) as media:
            await media.tell(START)
            await until(lambda: rig.server.registry.find("c") is not None, "the call")
            assert [await asked(rig, ACME) for _ in range(6)] == [200] * 6
            assert await asked(rig, "pbx") == 409 and await asked(rig, ACME) == 200
            assert keys.characters.today() == {ACME: 7 * len("Hello.")}

    run(main)


def test_a_visit_of_the_operator_leaves_a_call_to_its_key() -> None:
    """Pinned: behind it the call did not count for the key, which then could not speak in its own call any more."""

    async def main() -> None:
        keys = ring(ACME, calls=1)
        async with serving(Tones(), keys=keys) as rig, leg(rig, "/media/native", **bearer(PLAIN)) as media:
            await media.tell(START)
            await until(lambda: rig.server.registry.find("c") is not None, "the call")
            assert await asked(rig, ACME) == 200 and await asked(rig, PLAIN) == 200
            assert rig.server.registry.calls_by_key() == {ACME: 1}
            with pytest.raises(InvalidStatus):
                async with rig.bot(headers=bearer(ACME)):
                    pass
            assert await asked(rig, ACME) == 200

    run(main)


def test_without_keys_every_bot_that_comes_when_the_place_is_free_gets_in() -> None:
    async def main() -> None:
        async with serving(Tones()) as rig:
            for n, (first, second) in enumerate(product(["deepgram", "http"], BOTS)):
                scene = Scene(rig, KeyRing(), f"c{n}", (first, second))
                caller = media_leg(rig, "native", NONE, scene.name)
                await scene.leave(await scene.speaks(first, NONE, True, "first"))
                await scene.leave(await scene.speaks(second, NONE, True, "second"))
                caller.leave()
                await rounds(lambda: not len(rig.server.registry), "the call does not end")
                assert not scene.wrong

    run(main)


def test_a_call_that_ends_with_its_bot_leaves_its_name_to_anyone() -> None:
    async def main() -> None:
        async with keyed() as (rig, keys):
            for n, (first, second, *_) in enumerate(TABLE):
                scene = Scene(rig, keys, f"c{n}", (first, second))
                for key in (first, second):
                    caller = media_leg(rig, "native", NONE, scene.name)
                    peer = await scene.speaks("stream", key, True, key)
                    scene.belongs_to(NAMES[key], key)
                    await scene.leave(peer)
                    assert scene.call is None
                    caller.leave()
                await rounds(lambda: not len(rig.server.registry), "the calls do not end")
                assert not scene.wrong

    run(main)


@pytest.mark.parametrize("key", [PLAIN, ACME])
def test_an_asterisk_that_is_dialled_has_the_key_of_the_socket_that_asked(key: str) -> None:
    async def main() -> None:
        async with (
            waiting_asterisk() as (url, came),
            keyed(asterisk_dial=(url,)) as (rig, keys),
            leg(rig, f"/media/asterisk?dial={url}1", **bearer(key)),
        ):
            asterisk = await asyncio.wait_for(came.get(), 5)
            await asterisk.tell({**MEDIA_START, "channel_id": "c"})
            scene = Scene(rig, keys, "c", (key,))
            await until(lambda: scene.call is not None, "the call")
            scene.belongs_to(NAMES[key], "before a bot came")
            await scene.leave(await scene.speaks("deepgram", OTHER, True, "first"))
            (await scene.speaks("deepgram", ACME, False, "second")).leave()
            scene.belongs_to(OTHER, "behind the second")
            await scene.leave(await scene.speaks("deepgram", PLAIN, True, "operator"))
            assert not scene.wrong

    run(main)


class DialledBot:
    """A bot that the server dials. It answers when it `may_come`."""

    def __init__(self) -> None:
        self.is_dialled, self.may_come = asyncio.Event(), asyncio.Event()
        self.came: list[ServerConnection] = []

    async def answer(self, _connection: ServerConnection, _request: Request) -> None:
        self.is_dialled.set()
        await self.may_come.wait()

    async def speak(self, connection: ServerConnection) -> None:
        self.came.append(connection)
        await connection.send(json.dumps({"type": "say", "text": "Hello."}))
        await connection.wait_closed()


@asynccontextmanager
async def dialled_bot() -> AsyncIterator[tuple[str, DialledBot]]:
    """The bot and its address."""
    bot = DialledBot()
    async with serve(bot.speak, "127.0.0.1", 0, process_request=bot.answer) as listener:
        yield f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/", bot


@pytest.mark.parametrize("key", LEGS)
def test_a_dialled_bot_has_the_key_of_the_media_leg(key: str) -> None:
    async def main() -> None:
        async with dialled_bot() as (url, dialled), keyed(bot_url=url) as (rig, keys):
            scene = Scene(rig, keys, "c", (key,))
            caller = media_leg(rig, "native", key, "c")
            dialled.may_come.set()
            await until(lambda: scene.spoken == ["Hello."], "the bot has spoken")
            for visitor in (PLAIN, ACME, OTHER):
                scene.belongs_to(NAMES[key], f"beside {visitor}")
                for door in ("stream", "deepgram", "http"):
                    (await scene.speaks(door, visitor, False, f"{visitor} at {door}")).leave()
                scene.texts = list(TEXTS)
            assert keys.characters.today() == ({NAMES[key]: len("Hello.")} if NAMES[key] else {})
            caller.leave()
            assert not scene.wrong

    run(main)


@pytest.mark.parametrize("how", ["it comes late", "it never comes"])
def test_a_dialled_bot_leaves_the_call_to_a_bot_that_came_by_itself(how: str) -> None:
    """Pinned: between two requests over HTTP it took the call, or the call ended because it could not be reached."""

    async def main() -> None:
        timeout_s = 0.5 if how == "it never comes" else 8.0
        async with (
            dialled_bot() as (url, dialled),
            keyed(bot_url=url, bot_connect_timeout_s=timeout_s) as (rig, keys),
        ):
            scene = Scene(rig, keys, "c", (how,))
            caller = media_leg(rig, "native", OTHER, "c")
            await dialled.is_dialled.wait()
            await scene.leave(await scene.speaks("http", ACME, True, "first"))
            if how == "it comes late":
                dialled.may_come.set()
                await until(lambda: dialled.came and dialled.came[0].close_code is not None, "it is sent away")
                assert dialled.came[0].close_code == 4409
            else:
                await asyncio.sleep(2 * timeout_s)
                dialled.may_come.set()
            await scene.leave(await scene.speaks("http", ACME, True, "later"))
            (await scene.speaks("http", OTHER, False, "the key of the media leg")).leave()
            scene.belongs_to(ACME, "in the end")
            caller.leave()
            assert not scene.wrong

    run(main)
