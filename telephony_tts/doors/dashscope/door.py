"""DashScope's CosyVoice service, as Alibaba Cloud offers it."""

from __future__ import annotations

import re

from telephony_tts.doors.dashscope import codec
from telephony_tts.transport.door import Door, Vendor

DOOR = Door(
    "dashscope",
    bots=(
        Vendor(
            "dashscope", re.compile(r"/api-ws/v1/inference/?"), codec.open_inference, codec.refuse, codec.OWN_VOICE,
            turn_idle_s=codec.TASK_IDLE_S,
        ),
    ),
)  # fmt: skip
