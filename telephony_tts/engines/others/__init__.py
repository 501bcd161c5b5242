"""Speech servers of other projects, as engines of ours: Triton, OpenAI-shaped servers, CosyVoice's own runtimes."""
