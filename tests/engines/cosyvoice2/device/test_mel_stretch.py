import pytest
import torch

from telephony_tts.engines.cosyvoice2.device.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import stretch_mel

torch.set_num_threads(1)


@pytest.mark.parametrize("speed", [0.5, 0.77, 1.0, 1.3, 2.0])
def test_stretching_in_blocks_is_stretching_at_once(speed: float) -> None:
    mel = torch.randn(1, 80, 137, generator=torch.Generator().manual_seed(0))
    whole = MelStretch(speed).push(mel, last=True)
    assert whole.shape[2] == int(137 / speed)
    in_blocks = MelStretch(speed)
    sizes = [44, 50, 1, 36, 6]
    parts = [in_blocks.push(part, last=i == 4) for i, part in enumerate(torch.split(mel, sizes, 2))]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-6)
    if (137 / speed).is_integer():
        torch.testing.assert_close(whole, stretch_mel(mel, speed), rtol=0, atol=1e-5)
