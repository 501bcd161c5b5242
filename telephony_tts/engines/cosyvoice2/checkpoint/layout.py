"""Names and shapes of the tensors of a checkpoint, as the networks themselves ask for them (specification 2).

Each function reads a network in outline, which takes milliseconds and no memory, whatever its sizes. With the default
sizes the result is the official CosyVoice2-0.5B: 1,743 tensors, and `TEXT_HEAD` beside them. With the sizes of
`official_300m` it is CosyVoice-300M: 1,813 tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    FlowDecoderConfig,
    FlowEncoderConfig,
    LmConfig,
    ModelConfig,
    RelativeLmConfig,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE, LM_FILE, VOCODER_FILE
from telephony_tts.engines.cosyvoice2.model.flow.decoder import Estimator
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.unet import UnetEstimator
from telephony_tts.engines.cosyvoice2.model.flow.whole_flow import TokenEncoder
from telephony_tts.engines.cosyvoice2.model.lm.lm import TEXT_HEAD, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.relative_lm import RelativeLm
from telephony_tts.engines.cosyvoice2.model.state import Shape, StateReader
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import VocoderReader
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder

State = Mapping[str, Tensor]


def lm_outline(config: LmConfig | RelativeLmConfig, state: State) -> StateReader:
    """llm.pt. Raises ValueError for sizes that no tensor can have, as do those below."""
    if isinstance(config, RelativeLmConfig):
        reader = StateReader(state, outline=True)
        RelativeLm(config, reader)
        return reader
    reader = StateReader(state, unused=(TEXT_HEAD,), outline=True)
    LanguageModel.read(config, reader)
    return reader


def flow_outline(encoder: FlowEncoderConfig, decoder: FlowDecoderConfig, state: State) -> StateReader:
    """flow.pt."""
    reader = FlowReader(state, outline=True)
    FlowEncoder(encoder, reader)
    Estimator(decoder, reader, "decoder.estimator")
    return reader


def whole_flow_outline(encoder: FlowEncoderConfig, decoder: FlowDecoderConfig, state: State) -> StateReader:
    """flow.pt of CosyVoice-300M."""
    reader = FlowReader(state, outline=True)
    TokenEncoder(encoder, reader)
    UnetEstimator(decoder, reader, "decoder.estimator")
    return reader


def vocoder_outline(config: VocoderConfig, state: State) -> StateReader:
    """hift.pt, with today's names of weight norm."""
    reader = VocoderReader(state, outline=True)
    Vocoder.read(config, reader)
    return reader


def checkpoint_shapes(config: ModelConfig) -> dict[str, dict[str, Shape]]:
    """The tensors of each file of a model directory."""
    outline = flow_outline if config.family.flow_streams else whole_flow_outline
    return {
        LM_FILE: lm_outline(config.lm, {}).shapes,
        FLOW_FILE: outline(config.flow_encoder, config.flow_decoder, {}).shapes,
        VOCODER_FILE: vocoder_outline(config.vocoder, {}).shapes,
    }
