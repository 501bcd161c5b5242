"""Text that comes while it is spoken: nothing is lost or taken twice, and no wait hangs, in any order of threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from telephony_tts.engines.api import TextFeed, Utterance
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.hibari.engine import HibariEngine


def test_pushed_text_is_taken_once_and_the_end_comes_with_or_after_it() -> None:
    feed = TextFeed()
    assert feed.take() == ("", False)
    feed.push(" one")
    feed.push(" two")
    assert feed.take() == (" one two", False)
    assert feed.take() == ("", False)
    feed.push(" three")
    feed.end()
    assert feed.take() == (" three", True)
    assert feed.take() == ("", True)


def test_text_after_the_end_is_dropped() -> None:
    feed = TextFeed()
    feed.end()
    feed.end()
    feed.push("late")
    assert feed.take() == ("", True)


def test_news_wakes_once_and_immediately_if_it_is_there() -> None:
    feed, woken = TextFeed(), []
    feed.on_news(lambda: woken.append("first"))
    feed.push("")
    assert woken == [], "nothing is no news"
    feed.push("text")
    feed.push("more")
    assert woken == ["first"]
    feed.on_news(lambda: woken.append("unread"))
    feed.push("and more")
    assert woken == ["first", "unread"]
    feed.take()
    feed.on_news(lambda: woken.append("replaced"))
    feed.on_news(lambda: woken.append("end"))
    feed.end()
    feed.end()
    assert woken == ["first", "unread", "end"]
    feed.on_news(lambda: woken.append("end not taken"))
    assert woken[-1] == "end not taken"
    feed.take()
    feed.on_news(lambda: woken.append("never"))
    feed.push("late")
    feed.end()
    assert woken[-1] == "end not taken"


def test_a_wake_callback_may_take_text() -> None:
    feed, taken = TextFeed(), []
    feed.on_news(lambda: taken.append(feed.take()))
    feed.push("text")
    assert taken == [("text", False)]


def test_a_worker_gets_every_character_in_order_and_the_end() -> None:
    """Thirty runs of a pushing and a taking thread. A lost wake-up shows as a worker that does not return."""
    for _ in range(30):
        feed = TextFeed()
        taken: list[str] = []

        def work(feed: TextFeed = feed, taken: list[str] = taken) -> None:
            while True:
                news = threading.Event()
                feed.on_news(news.set)
                assert news.wait(5), "news came and no task was woken"
                text, is_last = feed.take()
                taken.append(text)
                if is_last:
                    return

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        pieces = [f" {n}" for n in range(200)]
        for piece in pieces:
            feed.push(piece)
        feed.end()
        worker.join(10)
        assert not worker.is_alive() and "".join(taken) == "".join(pieces)


def test_whole_returns_all_text_that_was_not_taken() -> None:
    async def main() -> None:
        feed = TextFeed()
        feed.push("taken")
        feed.take()
        feed.push(" one")
        whole = asyncio.create_task(feed.whole())
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: (feed.push(" two"), feed.push(" three"), feed.end()))
        thread.start()
        assert await asyncio.wait_for(whole, 5) == " one two three"
        thread.join()
        assert await feed.whole() == ""

    asyncio.run(main())


def test_waiting_for_the_whole_can_be_cancelled() -> None:
    feed = TextFeed()

    async def main() -> None:
        waiting = asyncio.create_task(feed.whole())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    feed.push("nothing waits, and the loop is gone")
    feed.end()
    assert feed.take() == ("nothing waits, and the loop is gone", True)


def test_the_feed_is_not_part_of_an_utterances_identity() -> None:
    assert Utterance("u", "text", more=TextFeed()) == Utterance("u", "text")
    assert "more" not in repr(Utterance("u", "text", more=TextFeed()))


def test_engines_that_need_whole_sentences_say_so() -> None:
    assert not any(engine.streams_text for engine in (FakeEngine(), HibariEngine(), EspeakEngine()))
