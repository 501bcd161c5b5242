"""One Asterisk and one media thread, shared by all tests of this folder that do not disturb them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asterisk_peer import Asterisk, asterisk
from rtp_end import RtpExchange, exchange


@pytest.fixture(scope="session")
def running_asterisk() -> Iterator[Asterisk]:
    with asterisk() as running:
        yield running


@pytest.fixture
def pbx(running_asterisk: Asterisk) -> Iterator[Asterisk]:
    """An Asterisk that has no call before and after the test."""
    running_asterisk.wait_for_no_channel()
    yield running_asterisk
    running_asterisk.wait_for_no_channel()


@pytest.fixture
def media() -> Iterator[RtpExchange]:
    with exchange() as running:
        yield running
