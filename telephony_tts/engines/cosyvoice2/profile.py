"""How soon the first audio comes, how large later blocks are, and how blocks are joined: default, cpu, fast, upstream.

A plan depends only on the length of a voice's prompt and the number of tokens, never on other utterances or on time.
docs/cosyvoice2.md compares the profiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS

_ALL_TOKENS = 1 << 30
"""More than any piece has."""


@dataclass(frozen=True, slots=True)
class Profile:
    """See the module. The default values are the default profile.

    `first_tokens`: tokens of the first block of a voice with a prompt. The front of the prompt is cut by less than a
    second, so that a block ends after that many. A voice can share whole blocks only (specification 8); with 22 three
    prompt tokens are left over. With the lookahead the first audio takes 25 speech tokens, and 28 without a prompt.
    None keeps the prompt whole. The first block then fills the prompt's last block and takes one more: 28 to 52 tokens.
    """

    first_tokens: int | None = 22
    later_block_tokens: tuple[int, ...] = (BLOCK_TOKENS,)
    """Tokens of the blocks after the first; the last size is repeated. A block becomes audio only when all
    of it is computed. So a block of four seconds leaves a gap if the engine is little faster than speech, and it is no
    cheaper (docs/experiments.md)."""
    hold_frames: int | None = None
    """See `ContinuousJoint`."""
    second_frames: int | None = None
    """Mel frames of the second block that become audio first. The rest of the block follows as audio of its own. The
    first audio is held back until it lasts to the next one, and so is heard sooner. None: the block is not divided."""
    causal_finish: bool = True
    """False: the end is computed over the whole utterance again, with all frames attending to all others."""
    upstream_joint: bool = False
    """Use the Hamming cross-fades of `UpstreamJoint` instead of a continuous source."""
    upstream_text: bool = False
    """Cut and spell text by `text_rules`."""
    whole_pieces: bool = False
    """A piece of text is one block, which begins when all of its ids are drawn. The next piece draws its ids meanwhile.
    Text is cut into clauses (`prompting.clause_pieces`)."""

    def n_cut(self, n_prompt: int) -> int:
        """Tokens to cut at the front of a prompt of `n_prompt` tokens."""
        if self.first_tokens is None:
            return 0
        n_cut = (n_prompt + self.first_tokens) % BLOCK_TOKENS
        return n_cut if n_cut < n_prompt else 0

    def block_tokens(self, n_blocks: int, n_prompt: int) -> int:
        """Tokens of the block after `n_blocks` blocks, behind a cut prompt of `n_prompt` tokens."""
        if self.whole_pieces:
            return _ALL_TOKENS
        if n_blocks:
            return self.later_block_tokens[min(n_blocks, len(self.later_block_tokens)) - 1]
        n_least = BLOCK_TOKENS if self.first_tokens is None else 1
        return n_least + -(n_prompt + n_least) % BLOCK_TOKENS

    def growing(self) -> Profile:
        """The profile for text that is still being written: only the smallest blocks. Ids that do not fill a block
        wait until the bot has written more."""
        return replace(self, later_block_tokens=(BLOCK_TOKENS,))

    def plan(self, n_prompt: int, n_tokens: int) -> Iterator[tuple[int, int, bool]]:
        """Calls of the flow for `n_tokens` of speech: tokens known, tokens given out before, whether it is the last."""
        n_out = n_blocks = 0
        n_left = n_prompt - self.n_cut(n_prompt)
        while n_out + (hop := self.block_tokens(n_blocks, n_left)) + LOOKAHEAD_TOKENS <= n_tokens:
            yield n_out + hop + LOOKAHEAD_TOKENS, n_out, False
            n_out += hop
            n_blocks += 1
        yield n_tokens, n_out, True


DEFAULT = Profile()
FAST = Profile(first_tokens=10, hold_frames=8)
"""First audio after 13 tokens; inexact in the last frames of each chunk (`model.vocoder.stream`)."""
CPU = Profile(hold_frames=8, second_frames=14)
"""First audio after 25 tokens, 0.24 s longer than that of the default profile, so that it lasts until a slow engine has
the next. With the 13 tokens of `FAST` it would be short, and be held back for longer (`core.jobs.Job.may_be_heard`)."""
UPSTREAM = Profile(
    first_tokens=None,
    later_block_tokens=(50, 100),
    causal_finish=False,
    upstream_joint=True,
    upstream_text=True,
)
"""What the reference does for its first caller (specification 7)."""
WHOLE = Profile(first_tokens=None, whole_pieces=True)
"""For CosyVoice-300M, whose flow cannot stream. It has no other."""
PROFILES: Mapping[str, Profile] = {"default": DEFAULT, "cpu": CPU, "fast": FAST, "upstream": UPSTREAM}


def profile_of(name: str, device: str) -> Profile:
    """The profile of a name in `PROFILES`, or that which suits the device if the name is "auto"."""
    if name == "auto":
        name = "cpu" if device == "cpu" else "default"
    return PROFILES[name]
