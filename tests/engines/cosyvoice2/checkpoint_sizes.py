"""All sizes of a checkpoint, read by the functions of `checkpoint/sizes.py`."""

from __future__ import annotations

from telephony_tts.engines.cosyvoice2.checkpoint.sizes import (
    Settings,
    State,
    decoder_config,
    encoder_config,
    lm_config,
    sampling_config,
    vocoder_config,
)
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig


def model_config(lm: State, flow: State, hift: State, settings: Settings, qwen: Settings) -> ModelConfig:
    """All sizes of complete states. Raises ValueError for the first contradiction."""
    return ModelConfig(
        lm=lm_config(lm, settings, qwen),
        sampling=sampling_config(settings),
        flow_encoder=encoder_config(flow, settings),
        flow_decoder=decoder_config(flow, settings),
        vocoder=vocoder_config(hift, settings),
    )
