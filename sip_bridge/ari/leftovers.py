"""What Asterisk still has of calls that nobody here knows: found by its names, so that it can be removed. Pure."""

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
    """Names of ours are `APP-INSTANCE-NUMBER`, a bridge, and with `-media` or `-out` a channel.

    Of this process what belongs to no live call is left over. Another process of the same application may be about to
    use what seems left over, or drain; so there it must be what no call can use, twice in a row. Over a WebSocket two
    channels in a bridge may hear each other without any bridge of ours; over RTP they do so as long as somebody has the
    port.
    """

    def __init__(self, app: str, instance: str) -> None:
        self._app = app
        self._instance = instance
        self._ours = re.compile(rf"({re.escape(app)}-[0-9a-f]{{8}})-\d+(-media|-out)?")
        self._suspects: set[Request] = set()
        self._abandoned: set[str] = set()

    def abandon(self, channel_id: str) -> None:
        """A caller of this process who could not be let go: Asterisk could not be asked."""
        self._abandoned.add(channel_id)

    def is_made_here(self, channel_id: str) -> bool:
        """Whether a bridge of this application, this one or another, made the channel."""
        return self._ours.fullmatch(channel_id) is not None

    def requests(
        self,
        channels: Iterable[AriChannel],
        bridges: Iterable[MixingBridge],
        live: Set[str],
        unheard: Set[str] = frozenset(),
    ) -> list[Request]:
        """What to ask of Asterisk, by what it has; `live` are ids of channels and bridges of live calls, `unheard` of
        media channels whose RTP goes to a port that nobody has."""
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
        """Our own channels are ended; a caller goes on in the dialplan."""
        if self.is_made_here(channel_id):
            return ("DELETE", "channels", channel_id)
        return ("POST", "channels", channel_id, "continue")


def rtp_end_of(channel: AriChannel) -> tuple[str, int] | None:
    """Address and port to which a media channel of ours sends its RTP, which its name tells; None for any other."""
    found = _RTP_NAME.fullmatch(channel.name)
    return (found[1], int(found[2])) if found is not None and channel.id.endswith("-media") else None


def channels_of(body: Any) -> list[AriChannel]:
    """The channels of Asterisk's list. ValueError for what is none: a call that it does not tell would seem to be over.
    """
    channels = [channel_of(item) for item in _list(body)]
    found = [channel for channel in channels if channel is not None]
    if len(found) < len(channels):
        raise ValueError("Asterisk's list has a channel without an id")
    return found


def bridges_of(body: Any) -> list[MixingBridge]:
    """The bridges of Asterisk's list. ValueError for what is none."""
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
