"""Finds channels and bridges of ended calls in Asterisk by their names, so that they can be removed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from sip_bridge.ari.messages import AriChannel, channel_of

Request = tuple[str, ...]
"""Method and path."""

_RTP_NAME = re.compile(r"UnicastRTP/\[?([0-9A-Fa-f.:]{2,45}?)\]?:(\d{1,5})-0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class MixingBridge:
    id: str
    channels: tuple[str, ...]


class Leftovers:
    """The bridge names its mixing bridges `APP-INSTANCE-NUMBER`, and its channels the same with `-media` or `-out`.

    Everything of this process that belongs to no live call is left over. Another process of the application may be
    about to use an object, or drain its calls. So an object of another process must be unusable for any call, twice in
    a row. Media over a WebSocket goes on without the bridge's process, media over RTP only while its port is in use.
    """

    def __init__(self, app: str, instance: str) -> None:
        self._app = app
        self._instance = instance
        self._ours = re.compile(rf"({re.escape(app)}-[0-9a-f]{{8}})-\d+(-media|-out)?")
        self._suspects: set[Request] = set()
        self._abandoned: set[str] = set()

    def abandon(self, channel_id: str) -> None:
        """Remember a caller of this process that could not be sent back to the dialplan."""
        self._abandoned.add(channel_id)

    def is_made_here(self, channel_id: str) -> bool:
        """Whether a process of this application has created the channel, this process or another."""
        return self._ours.fullmatch(channel_id) is not None

    def requests(
        self,
        channels: Iterable[AriChannel],
        bridges: Iterable[MixingBridge],
        live: Set[str],
        unheard: Set[str] = frozenset(),
    ) -> list[Request]:
        """The requests that remove leftovers from Asterisk's `channels` and `bridges`.

        `live` has the ids of channels and bridges of live calls, `unheard` those of media channels whose RTP goes to a
        port that no process has.
        """
        bridges = list(bridges)
        bridged = {channel_id for bridge in bridges for channel_id in bridge.channels}
        mine: list[Request] = []
        suspects: list[Request] = []
        for bridge in bridges:
            if bridge.id in live or not self.is_made_here(bridge.id):
                continue
            if self._is_mine(bridge.id):
                mine += self._emptied(bridge)
            elif len(bridge.channels) < 2 or not unheard.isdisjoint(bridge.channels):
                suspects += self._emptied(bridge)
        for channel in channels:
            if channel.id in live or channel.id in bridged:
                continue
            if self._is_mine(channel.id) or channel.id in self._abandoned:
                mine.append(self._released(channel.id))
            elif channel.id.endswith("-media") and self.is_made_here(channel.id):
                suspects.append(("DELETE", "channels", channel.id))
            elif channel.application == ("Stasis", self._app):
                suspects.append(self._released(channel.id))
        certain = [request for request in suspects if request in self._suspects]
        self._suspects = set(suspects)
        self._abandoned.clear()
        return mine + certain

    def _is_mine(self, name: str) -> bool:
        found = self._ours.fullmatch(name)
        return found is not None and found[1] == self._instance

    def _emptied(self, bridge: MixingBridge) -> Iterator[Request]:
        for channel_id in bridge.channels:
            yield self._released(channel_id)
        yield ("DELETE", "bridges", bridge.id)

    def _released(self, channel_id: str) -> Request:
        """End a channel that the bridge has created; send a caller back to the dialplan."""
        if self.is_made_here(channel_id):
            return ("DELETE", "channels", channel_id)
        return ("POST", "channels", channel_id, "continue")


def rtp_end_of(channel: AriChannel) -> tuple[str, int] | None:
    """The address and port of a media channel's RTP, read from its name; None for any other channel."""
    found = _RTP_NAME.fullmatch(channel.name)
    return (found[1], int(found[2])) if found is not None and channel.id.endswith("-media") else None


def channels_of(body: Any) -> list[AriChannel]:
    """The channels of Asterisk's list. Raises ValueError for a bad list: a missing channel would end its call."""
    channels = [channel_of(item) for item in _list(body)]
    found = [channel for channel in channels if channel is not None]
    if len(found) < len(channels):
        raise ValueError("Asterisk's list has a channel without an id")
    return found


def bridges_of(body: Any) -> list[MixingBridge]:
    """The bridges of Asterisk's list. Raises ValueError for a bad list."""
    bridges = []
    for item in _list(body):
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            within = item.get("channels")
            names = within if isinstance(within, list) else []
            bridges.append(MixingBridge(item["id"], tuple(name for name in names if isinstance(name, str))))
    return bridges


def _list(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise ValueError("Asterisk's answer is not the list that was asked for")
    return body
