"""How soon audio comes, how large the blocks are that follow, and how they are joined: default, fast, upstream.

A plan depends on the length of a voice's prompt and on the number of tokens alone, never on other utterances or on
time. What the profiles differ in, and why, is told in docs/cosyvoice2.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS


@dataclass(frozen=True, slots=True)
class Profile:
    """See the module. The default values are the default profile.

    `first_tokens` is the first block of a voice with a prompt: its prompt is cut at the front, by less than a second,
    so that a block ends after that many. 22 leaves three prompt tokens beside whole blocks, which is all that a voice
    can share (specification 8); with the lookahead the first audio takes 25 speech tokens, and 28 without a prompt.
    None leaves the prompt whole and takes one block more than fills its last one: 28 to 52 tokens.
    """

    first_tokens: int | None = 22
    hops: tuple[int, ...] = (BLOCK_TOKENS,)
    """The blocks after the first, in tokens; the last is repeated. A block is heard when all of it is made, so one of
    four seconds leaves a gap where the engine is little faster than speech, and costs no less (docs/experiments.md)."""
    hold_frames: int | None = None
    """See `ContinuousJoint`."""
    causal_finish: bool = True
    """False: the last chunk is computed with all frames seeing all others, over the whole utterance again."""
    upstream_joint: bool = False
    """Hamming cross-fades of `UpstreamJoint` in place of a continuous source."""
    upstream_text: bool = False
    """Text is cut and spelt by `text_rules`."""

    def n_cut(self, n_prompt: int) -> int:
        """Tokens to leave out at the front of a prompt of `n_prompt`."""
        if self.first_tokens is None:
            return 0
        n_cut = (n_prompt + self.first_tokens) % BLOCK_TOKENS
        return n_cut if n_cut < n_prompt else 0

    def hop(self, n_blocks: int, n_prompt: int) -> int:
        """Tokens of the block after `n_blocks` others, behind a prompt of `n_prompt` (what is left of it)."""
        if n_blocks:
            return self.hops[min(n_blocks, len(self.hops)) - 1]
        n_least = BLOCK_TOKENS if self.first_tokens is None else 1
        return n_least + -(n_prompt + n_least) % BLOCK_TOKENS

    def growing(self) -> Profile:
        """The same for text that comes while it is spoken: the smallest blocks all along, because what is drawn and not
        yet a whole block stays unheard while the bot thinks about its next word."""
        return replace(self, hops=(BLOCK_TOKENS,))

    def plan(self, n_prompt: int, n_tokens: int) -> Iterator[tuple[int, int, bool]]:
        """All calls of the flow for `n_tokens` of speech: tokens known, tokens given out before, whether it ends."""
        n_out = n_blocks = 0
        n_left = n_prompt - self.n_cut(n_prompt)
        while n_out + (hop := self.hop(n_blocks, n_left)) + LOOKAHEAD_TOKENS <= n_tokens:
            yield n_out + hop + LOOKAHEAD_TOKENS, n_out, False
            n_out += hop
            n_blocks += 1
        yield n_tokens, n_out, True


DEFAULT = Profile()
FAST = Profile(first_tokens=10, hold_frames=8)
"""First audio from 13 tokens; inexact in the last frames of each chunk (`vocoder_stream`)."""
UPSTREAM = Profile(first_tokens=None, hops=(50, 100), causal_finish=False, upstream_joint=True, upstream_text=True)
"""What the reference does for its first caller, every time (specification 7)."""
PROFILES: Mapping[str, Profile] = {"default": DEFAULT, "fast": FAST, "upstream": UPSTREAM}
