"""The real Asterisk, the telephones and the witnesses of tests/pbx, for a benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))  # shared with the tests
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "pbx"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "asterisk_demo"))

from asterisk_peer import Asterisk, free_port
from debian_packages import PeerUnavailable
from peer_process import PeerFailed, PeerProcess, wait_until
from phones import Phone, calling
from rtp_end import PAYLOAD_TYPES, RtpPacket, exchange
from shipped import shipped_asterisk
from speaking_server import Bot, Bots
from standstill import Standstills, standstills

__all__ = [
    "PAYLOAD_TYPES",
    "Asterisk",
    "Bot",
    "Bots",
    "PeerFailed",
    "PeerProcess",
    "PeerUnavailable",
    "Phone",
    "RtpPacket",
    "Standstills",
    "calling",
    "exchange",
    "free_port",
    "shipped_asterisk",
    "standstills",
    "wait_until",
]
