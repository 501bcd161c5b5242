import pytest
import torch
from reference_vocoder import stretch_mel

from telephony_tts.engines.cosyvoice2.device.mel_stretch import MelStretch

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


def test_speed_stretches_the_mel_linearly() -> None:
    ramp = torch.arange(40.0).expand(1, 80, -1)
    for stretch in (stretch_mel, lambda mel, speed: MelStretch(speed).push(mel, last=True)):
        slow, fast = stretch(ramp, 0.5), stretch(ramp, 1.3)
        assert (slow.shape[2], fast.shape[2]) == (80, 30)
        assert torch.allclose(slow[0, 0, 1:-1], (torch.arange(80.0)[1:-1] + 0.5) / 2 - 0.5)
        assert torch.equal(stretch(ramp, 1.0), ramp)
        assert stretch(ramp, 100.0).shape[2] == 0
