"""A server with several processes under faults: fronts that die or hang, a full folder, replays, limits, drain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrier_peers import PlivoPeer
from forked_process import ForkServer
from front_server import FrontServer, free_port, front_server, serve_command
from rig import Bot, correlation, decoded, greeted, rendering, run, until
from twilio_peer import calling, dialling
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from telephony_tts.doors.plivo.codec import signature_v3
from telephony_tts.fronts.metrics_of_all import unpacked

DONE_8 = 'telephony_tts_turns_total{door="native",outcome="done"} 8.0'
pytestmark = [pytest.mark.timed, pytest.mark.thorough]

SENTENCE = "Your parcel left the depot on Tuesday."
SETTLED_S = 0.2
"""By then each front has counted out the connections that have ended, and told the other one."""
LONG = "This is said to its very end, whatever else may happen to the server in the meantime."


async def two_fronts_speak(server: FrontServer, n: int = 8, text: str = LONG) -> dict[int, list[Bot]]:
    """Bots with their audio on the same socket, speaking, by their front. Both fronts have some."""
    bots: dict[int, list[Bot]] = {0: [], 1: []}
    for each in range(n):
        bot = Bot(await connect(server.url(call=f"S{each}", audio="binary"), proxy=None, max_queue=None))
        ready = await bot.event("ready")
        owner = server.owner(ready["call"])
        assert owner is not None
        bots[owner].append(bot)
        await bot.say(text, "a")
        await bot.event("started", turn="a")
    assert min(map(len, bots.values())) >= 2, "the connections are spread"
    return bots


def wait_ended(served: subprocess.Popen[str], within_s: float) -> int:
    return served.wait(within_s)


# ------------------------------------------------------------------ fronts that die


def test_a_killed_front_loses_only_its_own_calls_and_is_replaced(short: Path) -> None:
    with front_server(short) as server:

        async def main() -> None:
            bots = await two_fronts_speak(server)
            before = server.metric('telephony_tts_calls_total{media="stream"}')
            assert before == 8 and server.metric('telephony_tts_calls_live{media="stream"}') == 8
            killed = server.pids[0]
            os.kill(killed, signal.SIGKILL)
            for bot in bots[0]:
                assert (await bot.gone(within_s=2))[0] in (None, 1006)
            # The port answers at once, and the ids of the lost calls are free.
            async with greeted(server.url(call="S-new", audio="binary")) as bot:
                await bot.say(SENTENCE, "a")
                await bot.event("done", turn="a")
                assert server.owner("S-new") == 1
            for bot in bots[1]:
                await bot.event("done", turn="a", within_s=12)
                assert correlation(decoded(bot.frames), rendering([LONG])) > 0.98
            await until(lambda: server.logged("front_ended"), "the supervisor has seen it")
            assert set(server.claims) == {"1.1"}, "no claim of the dead front is left"
            assert server.metric('telephony_tts_calls_total{media="stream"}') == 9, "a counter never goes down"
            await until(lambda: server.pids[0] != killed and len(ready_fronts(server)) == 3, "another front", 20)
            await until(lambda: server.metric("telephony_tts_fronts") == 2, "both run")
            assert server.metric('telephony_tts_calls_total{media="stream"}') == 9
            more = await two_fronts_speak_again(server)
            assert more, "the new front has calls"
            for bot in [*bots[0], *bots[1]]:
                await bot.aclose()

        run(main, within_s=90)
        (ended,) = server.logged("front_ended")
        assert (ended["front"], ended["how"], ended["level"]) == (0, "SIGKILL", "error")
        assert server.logged("claims_freed")[0]["calls"] >= 2


def ready_fronts(server: FrontServer) -> list[dict[str, Any]]:
    return server.logged("ready")


async def two_fronts_speak_again(server: FrontServer) -> int:
    """How many of some new calls are on the front that was started again."""
    n = 0
    for each in range(8):
        async with greeted(server.url(call=f"again{each}", audio="binary")) as bot:
            await bot.say("Hello.", "a")
            async with greeted(server.url(call=f"more{each}", audio="binary")):
                n += server.owner(f"more{each}") == 0
            await bot.event("done", turn="a")
    return n


def test_a_leg_for_a_front_that_dies_before_it_takes_it_begins_the_call_again(short: Path, forks: ForkServer) -> None:
    """The owner is stopped, so it has not greeted and the leg was not sent. When it dies, the leg is not lost."""
    with front_server(short, forks=forks) as server:

        async def main() -> None:
            async with greeted(server.url(call="CA1")) as bot:
                owner = server.owner("CA1")
                assert owner is not None
                os.kill(server.pids[owner], signal.SIGSTOP)
                async with calling(server.url("/media/twilio"), "CA1") as peer:
                    await peer.start()
                    await asyncio.sleep(0.3)  # the other front waits for the greeting now
                    os.kill(server.pids[owner], signal.SIGKILL)
                    await bot.gone()
                    await until(lambda: server.owner("CA1") == 1 - owner, "the call is that of the front that is left")
                    async with greeted(server.url(call="CA1")) as again:
                        await again.say(SENTENCE, "a")
                        await again.event("done", turn="a")

        run(main)
        assert not server.logged("move_failed")
        (gone,) = server.logged("front_gone")
        assert gone["level"] == "warning" and gone["front"].endswith(".1")


def test_a_new_connection_is_not_lost_to_a_front_that_is_stopped(short: Path, forks: ForkServer) -> None:
    """The front with fewer connections is stopped an instant ago, so the other one does not know it yet."""
    with front_server(short, forks=forks) as server:

        async def main() -> None:
            bots: dict[int | None, list[Any]] = {0: [], 1: []}
            async with contextlib.AsyncExitStack() as open_bots:
                for each in range(10):
                    bot = await open_bots.enter_async_context(greeted(server.url(call=f"S{each}")))
                    bots[server.owner(f"S{each}")].append(bot)
                idle = min(bots, key=lambda front: len(bots[front]))
                assert idle is not None
                for bot in bots[idle]:
                    await bot.aclose()
                await asyncio.sleep(SETTLED_S)
                with server.stopped(idle):
                    begun_s = time.monotonic()
                    async with greeted(server.url(call="CA1", audio="binary")) as bot:
                        await bot.say(SENTENCE, "a")
                        await bot.event("started", turn="a")
                        assert time.monotonic() - begun_s < 1
                        assert server.owner("CA1") == server.other(idle)
                        # It is known now: the next ones are not even tried.
                        await asyncio.sleep(0.3)
                        begun_s = time.monotonic()
                        async with greeted(server.url(call="CA2")):
                            assert time.monotonic() - begun_s < 0.2
                await asyncio.sleep(SETTLED_S)

        run(main)
        (silent,) = server.logged("front_silent")
        assert silent["level"] == "warning" and not server.logged("move_failed")
        assert not server.logged("moved_connection_not_taken"), "the other front has given up, which is no error"


def test_a_connection_for_a_front_that_hangs_is_closed_in_time(short: Path, forks: ForkServer) -> None:
    with front_server(short, forks=forks) as server:

        async def main() -> None:
            async with greeted(server.url(call="CA1")) as bot:
                owner = server.owner("CA1")
                assert owner is not None
                with server.stopped(owner):
                    begun_s = time.monotonic()
                    with pytest.raises((InvalidMessage, ConnectionError)):
                        await connect(server.url(call="CA1"), proxy=None, open_timeout=12)
                    assert 3 < time.monotonic() - begun_s < 7
                await bot.say("It goes on.", "a")
                async with calling(server.url("/media/twilio"), "CA1") as peer:
                    await peer.start()
                    await bot.event("done", turn="a")

        run(main)
        assert server.logged("move_failed")[0]["why"]


def test_fronts_end_when_their_supervisor_is_killed(short: Path) -> None:
    with front_server(short) as server:
        pids = list(server.pids.values())
        server.served.kill()
        end_s = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/stat").exists() and _runs(pid) for pid in pids):
            assert time.monotonic() < end_s, "fronts are left behind"
            time.sleep(0.05)
        assert len(server.logged("supervisor_gone")) == 2
    left = list((short / "runtime").iterdir())
    assert len(left) == 1, "no front could remove it"
    with front_server(short) as server:
        assert list((short / "runtime").iterdir()) == [server.runtime] and server.runtime != left[0]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------- the whole


def test_the_whole_server_drains_without_cutting_a_turn(short: Path) -> None:
    with front_server(short, "server.drain_s=20") as server:

        async def main() -> None:
            bots = await two_fronts_speak(server)
            idle = Bot(await connect(server.url(call="idle"), proxy=None, max_queue=None))
            await idle.event("ready")
            server.served.terminate()
            assert (await idle.gone())[0] == 1001
            with pytest.raises(InvalidStatus) as refused:
                await connect(server.url(), proxy=None)
            assert refused.value.response.status_code == 503
            for bot in [*bots[0], *bots[1]]:
                await bot.event("done", turn="a", within_s=15)
                assert (await bot.gone())[0] == 1001
                assert correlation(decoded(bot.frames), rendering([LONG])) > 0.98
                await bot.aclose()
            await idle.aclose()

        run(main, within_s=60)
        assert wait_ended(server.served, 10) == 0
        assert list((short / "runtime").iterdir()) == []
        assert not server.logged("front_ended") and server.log[-1]["event"] == "stopped"


def test_a_second_signal_ends_all_fronts_at_once(short: Path) -> None:
    with front_server(short, "server.drain_s=60") as server:

        async def main() -> None:
            bots = await two_fronts_speak(server)
            server.served.terminate()
            await until(lambda: len(server.logged("draining")) == 2, "both drain")
            await asyncio.sleep(0.4)  # not the same signal once more
            begun_s = time.monotonic()
            server.served.send_signal(signal.SIGINT)
            for bot in [*bots[0], *bots[1]]:
                await bot.event("cleared", turn="a")
                await bot.gone()
                await bot.aclose()
            assert time.monotonic() - begun_s < 3

        run(main)
        assert wait_ended(server.served, 10) == 0


@pytest.fixture(scope="module")
def server_of_five(short_of_module: Path, forks: ForkServer) -> Iterator[FrontServer]:
    """At most five calls at a time."""
    with front_server(short_of_module, "limits.calls=5", forks=forks) as server:
        yield server


def test_the_limit_of_calls_is_that_of_all_fronts(server_of_five: FrontServer) -> None:
    server = server_of_five

    async def main() -> None:
        bots = []
        for n in range(5):
            bots.append(Bot(await connect(server.url(call=f"L{n}", audio="binary"), proxy=None)))
            await bots[-1].event("ready")
        owners = [server.owner(f"L{n}") for n in range(5)]
        assert set(owners) == {0, 1}
        for front in (0, 1):
            with server.stopped(front), pytest.raises(InvalidStatus) as refused:
                await connect(server.url(audio="binary"), proxy=None)
            assert refused.value.response.status_code == 503
            assert "5 calls are live, the limit is 5" in refused.value.response.body.decode()
        # The front with three calls loses one: a front with two calls less would get the next call, also while it is
        # stopped.
        leaves = owners.index(max((0, 1), key=owners.count))
        await bots[leaves].aclose()
        await until(lambda: server.owner(f"L{leaves}") is None, "its id is free")
        for front in (0, 1):
            await asyncio.sleep(SETTLED_S)
            with server.stopped(front):
                bot = Bot(await connect(server.url(call="L9", audio="binary"), proxy=None))
            await bot.event("ready")
            await bot.aclose()
            await until(lambda: server.owner("L9") is None, "it has gone")
        for bot in bots:
            await bot.aclose()

    run(main)


def test_a_burst_of_handshakes_does_not_exceed_the_limit(server_of_five: FrontServer) -> None:
    """All of them are admitted before the first of their calls has begun."""
    server = server_of_five

    async def try_to_call(n: int) -> Bot | None:
        try:
            bot = Bot(await connect(server.url(call=f"B{n}", audio="binary"), proxy=None))
        except InvalidStatus as refused:
            assert refused.response.status_code == 503
            return None
        try:
            await bot.event("ready")
        except AssertionError:
            assert await bot.gone() == (1013, "5 calls are live, which is the limit")
            return None
        return bot

    async def main() -> None:
        for _ in range(3):
            tried = await asyncio.gather(*(try_to_call(n) for n in range(40)))
            bots = [bot for bot in tried if bot is not None]
            assert 4 <= len(bots) <= 5, "two fronts may both refuse the last place; they never both give it"
            for bot in bots:
                await bot.aclose()
            await until(lambda: not server.claims, "all have gone")

    run(main)


def test_a_leg_may_join_when_all_fronts_are_full(short: Path, forks: ForkServer) -> None:
    """The bot waits on one front, and its media leg comes to the other one: it is no new call."""
    with front_server(short, "limits.calls=1", forks=forks) as server:

        async def main() -> None:
            async with greeted(server.url(call="CA1")) as bot:
                owner = server.owner("CA1")
                assert owner is not None
                with server.stopped(owner):
                    media = calling(server.url("/media/twilio"), "CA1")
                    peer = await media.__aenter__()
                await peer.start()
                await bot.event("call")
                await bot.say(SENTENCE, "a")
                await bot.event("done", turn="a")
                with server.stopped(owner):
                    stranger = calling(server.url("/media/twilio"), "CA2")
                    with pytest.raises(InvalidStatus):
                        await stranger.__aenter__()
                await media.__aexit__(None, None, None)

        run(main)


# -------------------------------------------------------------- things all must know


def test_a_nonce_of_plivo_is_used_once_by_all_fronts(short: Path, forks: ForkServer) -> None:
    base = "https://voice.example.com"

    def signed(nonce: str) -> dict[str, str]:
        header = signature_v3("secret", f"{base}/media/plivo", nonce)
        return {"X-Plivo-Signature-V3": header, "X-Plivo-Signature-V3-Nonce": nonce}

    with front_server(
        short, "plivo.auth_token=secret", f"server.public_url={base}", "server.tokens=['sesame']", forks=forks
    ) as server:

        async def main() -> None:
            url = server.url("/media/plivo")
            with server.stopped(0):
                first = dialling(PlivoPeer, url, "P1", headers=signed("n1"))
                await first.__aenter__()
            for front in (0, 1):
                with server.stopped(front), pytest.raises(InvalidStatus) as refused:
                    await dialling(PlivoPeer, url, "P2", headers=signed("n1")).__aenter__()
                assert refused.value.response.status_code == 401
            with server.stopped(1):
                second = dialling(PlivoPeer, url, "P3", headers=signed("n2"))
                await second.__aenter__()
            for peer in (first, second):
                await peer.__aexit__(None, None, None)

        run(main)


def test_metrics_are_those_of_all_fronts_whichever_answers(short: Path, forks: ForkServer) -> None:
    with front_server(short, forks=forks) as server:

        async def main() -> None:
            bots = await two_fronts_speak(server, text=SENTENCE)
            for bot in [*bots[0], *bots[1]]:
                await bot.event("done", turn="a", within_s=12)
            # They are kept also without a scrape, so that a killed front is not missing in the sums.
            await until(lambda: _kept_turns(server) == 8, "both have written their metrics down")
            n_frames = sum(len(bot.frames) for bot in [*bots[0], *bots[1]])
            for front in (0, 1):
                pages = []
                for _ in range(2):
                    page = await asyncio.to_thread(server.page)
                    pages.append(page)
                assert DONE_8 in pages[0], front
            assert server.metric('telephony_tts_calls_live{media="stream"}') == 8
            assert server.metric("telephony_tts_frame_lateness_ms_count") == n_frames
            assert server.metric("telephony_tts_fronts") == 2
            # While a front hangs, the page has what it had counted.
            with server.stopped(1):
                assert DONE_8 in await asyncio.to_thread(server.page)
            for bot in [*bots[0], *bots[1]]:
                await bot.aclose()

        run(main)
        for _ in range(2):
            for pid in server.pids.values():
                os.kill(pid, signal.SIGKILL)
            n = len(server.logged("front_started"))
            end_s = time.monotonic() + 30
            while len(server.logged("front_started")) < n + 2 or len(server.logged("ready")) < n + 2:
                assert time.monotonic() < end_s, server.log[-5:]
                time.sleep(0.05)
            assert server.metric('telephony_tts_turns_total{door="native",outcome="done"}') == 8


def _kept_turns(server: FrontServer) -> float:
    """The turns in the files of the runtime folder."""
    files = [path for path in (server.runtime / "metrics").iterdir() if path.suffix != ".part"]
    done = ("telephony_tts_turns_total", (("door", "native"), ("outcome", "done")))
    return sum(unpacked(path.read_bytes())["telephony_tts_turns"].samples[done] for path in files)


def test_a_folder_that_cannot_be_used_refuses_new_calls_and_live_ones_go_on(short: Path, forks: ForkServer) -> None:
    with front_server(short, forks=forks) as server:

        async def main() -> None:
            async with greeted(server.url(call="CA1", audio="binary")) as bot:
                await bot.say(LONG, "a")
                await bot.event("started")
                calls = server.runtime / "calls"
                for claim in calls.iterdir():
                    claim.unlink()
                calls.rmdir()
                calls.touch()
                with pytest.raises(InvalidStatus) as refused:
                    await connect(server.url(call="CA2", audio="binary"), proxy=None)
                assert refused.value.response.status_code == 503
                assert "runtime folder" in refused.value.response.body.decode()
                async with calling(server.url("/media/twilio"), "CA3") as peer:
                    await peer.start()
                    assert (await peer.gone())[0] == 1013
                await bot.event("done", turn="a")
                assert correlation(decoded(bot.frames), rendering([LONG])) > 0.98

        run(main)
        failed = server.logged("claim_failed")[0]
        assert failed["level"] == "error" and "server.runtime_folder" in failed["why"]
        refused = [line for line in server.logged("refused") if line["reason"] == "busy"]
        assert any("runtime_folder" in line["why"] for line in refused)


# ------------------------------------------------------------------------ the start


def serve(
    *settings: str, folder: Path, forks: ForkServer | None = None, within_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """A server that cannot start. With `forks` it is forked, not started."""
    command = [*serve_command(forks), "--port", "0", "--set", "server.processes=2",
               "--set", f"server.runtime_folder={folder}", "--set", "engines.default=fake",
               "--set", "engines.hibari.workers=0"]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    with (forks or subprocess).Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        try:
            told, complained = served.communicate(timeout=within_s)
        finally:
            served.kill()
    return subprocess.CompletedProcess(command, served.returncode, told, complained)


def test_a_server_that_cannot_start_says_why_once(short: Path, forks: ForkServer) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        taken = serve(f"server.port={port}", folder=short, forks=forks)
        assert taken.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in taken.stderr
    # Its fronts find out, in processes that are real ones here.
    unknown = serve("speech.voice=stranger", folder=short)
    assert unknown.returncode == 1
    last = unknown.stderr.strip().splitlines()[-1]
    assert last.startswith("telephony-tts: ") and "stranger" in last
    open_to_all = serve(f"server.port={port}", "server.host=0.0.0.0", folder=short, forks=forks)
    assert open_to_all.returncode == 2 and open_to_all.stderr.count("no token is set") == 1
    nowhere = serve(f"server.port={port}", f"server.runtime_folder={short}/none", folder=short, forks=forks)
    assert nowhere.returncode == 2 and f"no folder {short}/none" in nowhere.stderr
    assert list(short.glob("telephony-tts-*")) == []


def test_localhost_is_served_on_all_its_addresses(short: Path, forks: ForkServer) -> None:
    with front_server(short, "server.host=localhost", forks=forks) as server:
        for host in ("127.0.0.1", "[::1]"):
            try:
                with urllib.request.urlopen(f"http://{host}:{server.port}/readyz", timeout=5) as answer:
                    assert answer.status == 200
            except urllib.error.URLError as error:
                assert host == "[::1]" and isinstance(error.reason, OSError), "only a machine without IPv6 may refuse"
