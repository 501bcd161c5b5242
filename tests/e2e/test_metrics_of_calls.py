"""What a call does is counted: each metric by what happens, read as a scraper reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from http_peer import ask, ask_json
from rig import Bot, Rig, Tones, get, run, serving, speech_settings

from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.runtime.metrics import render, value
from telephony_tts.session.lexicons import CallLexicon

pytestmark = pytest.mark.slow
_OPEN_METRICS = "Accept: application/openmetrics-text; version=1.0.0"


class Counted:
    """By how much the sums of some samples grew."""

    def __init__(self, *samples: tuple[str, dict[str, str]]) -> None:
        self._samples = samples
        self._before = [self._now(*sample) for sample in samples]

    @staticmethod
    def _now(name: str, labels: dict[str, str]) -> float:
        try:
            return value(f"telephony_tts_{name}", **labels)
        except KeyError:
            return 0.0

    def grown(self) -> list[float]:
        return [self._now(*sample) - before for sample, before in zip(self._samples, self._before, strict=True)]


async def spoken(bot: Bot, text: str, **more: Any) -> dict[str, Any]:
    await bot.send({"type": "say", "text": text, **more})
    return await bot.event("done")


def test_a_turn_is_counted_by_its_stages_its_engine_and_its_voice() -> None:
    async def main() -> None:
        counted = Counted(
            ("turn_stage_ms_count", {"stage": "text"}), ("turn_stage_ms_count", {"stage": "queue"}),
            ("turn_stage_ms_count", {"stage": "first_audio"}), ("turn_stage_ms_sum", {"stage": "first_audio"}),
            ("utterances_total", {"engine": "fake", "voice": "tone", "outcome": "done"}),
            ("engine_first_chunk_ms_count", {"engine": "fake"}), ("engine_first_chunk_ms_sum", {"engine": "fake"}),
            ("speech_seconds_total", {"engine": "fake", "voice": "tone"}),
            ("synthesis_seconds_total", {"engine": "fake", "voice": "tone"}),
        )  # fmt: skip
        async with serving(Tones(first_audio_ms=80)) as rig, rig.bot() as bot:
            done = await spoken(bot, "One sentence. And another one.")
        text, queue, first, first_ms, n_sentences, n_chunks, chunk_ms, speech_s, waited_s = counted.grown()
        assert (text, queue, first, n_sentences, n_chunks) == (1, 1, 1, 2, 2)
        assert 80 <= first_ms < 160 <= chunk_ms < 400 and waited_s >= 0.16
        assert speech_s * 1000 == pytest.approx(done["audio_ms"], abs=60)

    run(main)


def test_sentences_that_were_cut_off_or_failed_are_counted_as_such() -> None:
    async def main() -> None:
        of_voice = {"engine": "fake", "voice": "tone"}
        counted = Counted(
            *(("utterances_total", {**of_voice, "outcome": outcome}) for outcome in ("done", "cancelled", "failed"))
        )
        errors = Counted(("errors_total", {"code": "engine_failed"}), ("errors_total", {"code": "bad_json"}))
        async with serving(Tones(speed=1.0)) as rig, rig.bot() as bot:
            await bot.say("A sentence that is interrupted in its first word.")
            await bot.event("started")
            await bot.send({"type": "clear"})
            await bot.event("cleared")
            await bot.send("{not json")
            await bot.event("error", code="bad_json")
        async with serving(Tones(fail_after_chunks=1)) as rig, rig.bot() as bot:
            await bot.say("A sentence that fails.")
            await bot.event("error", code="engine_failed")
        assert counted.grown() == [0, 1, 1] and errors.grown() == [1, 1]

    run(main)


def test_a_gap_is_counted_with_its_length_and_its_call() -> None:
    async def main() -> None:
        counted = Counted(("underruns_total", {}), ("underrun_ms_count", {}), ("underrun_ms_sum", {}))
        async with serving(Tones(speed=0.5, chunk_ms=200)) as rig, rig.bot(call="gappy", audio="binary") as bot:
            done = await spoken(bot, "Half as fast as it is heard.", turn="t5")
            begun_s = next(at for at, entry in bot.log if isinstance(entry, bytes))
            ended_s = next(at for at, entry in bot.log if entry == done)
            page = (await get(rig.port, "/metrics", (_OPEN_METRICS,)))[2]
        n_underruns, n_gaps, gaps_ms = counted.grown()
        assert n_underruns == n_gaps == done["underruns"] >= 2
        whole_ms = (ended_s - begun_s) * 1000
        assert gaps_ms == pytest.approx(whole_ms - done["audio_ms"], abs=80), "what it took longer than it lasts"
        assert any("underrun_ms_bucket" in line and 'call="gappy",turn="t5"' in line for line in page.splitlines())

    run(main)


def test_a_bot_that_writes_slowly_makes_no_underrun() -> None:
    async def main() -> None:
        counted = Counted(("underruns_total", {}), ("underrun_ms_count", {}))
        async with serving() as rig, rig.bot() as bot:
            await bot.send({"type": "text", "turn": "t1", "text": "It is so. Then "})
            await bot.event("sentence")
            await asyncio.sleep(1.2)  # twice as long as the sentence
            await bot.send({"type": "text", "turn": "t1", "text": "it is not.", "last": True})
            await bot.event("done")
        assert counted.grown() == [0, 0]

    run(main)


def test_what_bots_use_on_a_call_is_counted(tmp_path: Path) -> None:
    (tmp_path / "brands.yaml").write_text("SQL: sequel\n")
    files = LexiconFiles({"brands": str(tmp_path / "brands.yaml")})

    async def main() -> None:
        counted = Counted(
            ("pauses_total", {"reason": "bot"}), ("pauses_total", {"reason": "barge_in"}),
            ("dtmf_sent_total", {"by": "tones"}), ("dtmf_sent_total", {"by": "message"}), ("bad_markup_total", {}),
            ("lexicon_readings_total", {}),
        )  # fmt: skip
        speech = speech_settings(lexicon=CallLexicon(files.shelf, {"*": ("brands",)}))
        async with serving(speech=speech) as rig, rig.bot(audio="binary") as bot:
            await bot.say("A turn that the bot pauses.", "t1")
            await bot.frames_to(5)
            await bot.send({"type": "pause"})
            await bot.event("paused")
            await bot.send({"type": "resume"})
            await bot.event("done", turn="t1")
            await bot.send({"type": "dtmf", "digits": "1w23"})
            await bot.event("done")
            await spoken(bot, "<speak>Half <nonsense>a</nonsense> tag.</speak>", text_type="ssml")
            await spoken(bot, "SQL and SQL.")
        assert counted.grown() == [1, 0, 3, 0, 1, 2]

    run(main)


def test_calls_are_counted_with_their_duration_and_what_there_may_be() -> None:
    async def main() -> None:
        counted = Counted(("call_seconds_count", {"media": "stream"}), ("call_seconds_sum", {"media": "stream"}))
        async with serving(calls=17) as rig:
            async with rig.bot():
                await asyncio.sleep(0.3)
                page = (await get(rig.port, "/metrics"))[2].splitlines()
            await rig.empty()
            assert 'telephony_tts_calls_limit{of="calls"} 17.0' in page
            assert f'telephony_tts_calls_limit{{of="requests"}} {rig.server.settings.vendors.http_streams:.1f}' in page
            assert "telephony_tts_fronts_ready 1.0" in page and "telephony_tts_fronts_wanted 1.0" in page
            rig.server.ready = False
            assert "telephony_tts_fronts_ready 0.0" in (await get(rig.port, "/metrics"))[2].splitlines()
            rig.server.ready = True
        n, whole_s = counted.grown()
        assert n == 1 and 0.3 <= whole_s < 3

    run(main)


def test_http_responses_are_counted_by_door_and_code() -> None:
    async def main() -> None:
        async with serving(tokens=("right",)) as rig:
            counted = Counted(
                ("http_responses_total", {"door": "openai", "code": "2xx"}),
                ("http_responses_total", {"door": "openai", "code": "4xx"}),
                ("http_responses_total", {"door": "http", "code": "2xx"}),
                ("turns_total", {"door": "openai", "outcome": "done"}),
                ("first_audio_ms_count", {"door": "openai"}),
            )  # fmt: skip
            key = "Bearer right"
            said = {"input": "Hello.", "voice": "alloy", "response_format": "pcm"}
            assert (await ask_json(rig.port, "/v1/audio/speech", said, Authorization=key)).status == 200
            assert (await ask_json(rig.port, "/v1/audio/speech", said, Authorization="Bearer no")).status == 401
            assert (await ask_json(rig.port, "/v1/audio/speech", {"input": 7}, Authorization=key)).status == 400
            assert (await ask(rig.port, "GET", "/openapi.json")).status == 200
            await rig.empty()
            assert counted.grown() == [1, 2, 1, 1, 1]

    run(main)


def test_exemplars_name_calls_only_to_those_who_may_use_the_server() -> None:
    async def main() -> None:
        async with serving(tokens=("right",)) as rig:
            key = {"Authorization": "Bearer right"}
            async with rig.bot(headers=key, call="secret-call", audio="binary") as bot:
                await spoken(bot, "One.")
            status, fields, page = await get(rig.port, "/metrics", (_OPEN_METRICS,))
            assert status == 200 and fields["content-type"].startswith("text/plain") and "secret-call" not in page
            told = (_OPEN_METRICS, "Authorization: Bearer right")
            status, fields, page = await get(rig.port, "/metrics", told)
            assert fields["content-type"].startswith("application/openmetrics-text") and "secret-call" in page
            assert page.endswith("# EOF\n")

    run(main)


def test_unknown_voices_and_too_many_voices_share_a_label() -> None:
    class Obliging(FakeEngine):
        """Speaks in any voice, also in one that it does not list."""

        def find_voice(self, name: str) -> Any:
            return None

    names = [f"voice {n}" for n in range(60)] + ['x"} 1\n', "y" * 100]

    async def main() -> None:
        async with serving(Obliging(name="many", voice_names=names, ms_per_char=1)) as rig, rig.bot() as bot:
            for name in names[:-2]:
                await bot.send({"type": "config", "voice": name})
                await spoken(bot, "Hm.")
        page = render()[0].decode()
        labels = {line for line in page.splitlines() if line.startswith("telephony_tts_utterances_total{")}
        assert 'telephony_tts_utterances_total{engine="many",outcome="failed",voice="voice 0"} 0.0' in labels
        of_many = {line.split('voice="')[1].split('"')[0] for line in labels if 'engine="many"' in line}
        assert "other" in of_many and len(of_many) <= 41
        assert value("telephony_tts_utterances_total", engine="many", outcome="done") == 60

    run(main)


def test_a_scrape_beside_calls_has_few_series() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def call(rig: Rig) -> None:
                async with rig.bot(audio="none") as bot:
                    await spoken(bot, "One.")

            await asyncio.gather(*(call(rig) for _ in range(20)))
            page = (await get(rig.port, "/metrics", (_OPEN_METRICS,)))[2]
        assert len([line for line in page.splitlines() if not line.startswith("#")]) < 1500

    run(main)
