"""The text that comes for utterances being spoken already."""

from __future__ import annotations

from dataclasses import replace

from telephony_tts.engines.api import TextFeed, Utterance
from telephony_tts.session.effects import Feed


class Feeds:
    """The open feeds of one call's utterances. Text for an utterance that is over finds none and is dropped."""

    def __init__(self) -> None:
        self._feeds: dict[str, TextFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, utterance: Utterance) -> None:
        if utterance.more is not None:
            self._feeds[utterance.id] = utterance.more

    def push(self, effect: Feed) -> None:
        feed = self._feeds.get(effect.utterance_id)
        if feed is not None:
            feed.push(effect.text)
            if effect.last:
                feed.end()

    def end(self, utterance_id: str) -> None:
        """The utterance is over: nobody may go on waiting for its text. Idempotent."""
        feed = self._feeds.pop(utterance_id, None)
        if feed is not None:
            feed.end()


async def complete(utterance: Utterance) -> Utterance:
    """The utterance with all of its text, for an engine that wants it whole: waits until the bot has written it."""
    if utterance.more is None:
        return utterance
    return replace(utterance, text=utterance.text + await utterance.more.whole(), more=None)
