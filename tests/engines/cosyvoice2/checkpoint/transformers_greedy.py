"""Runs a converted folder in the Qwen2 of `transformers`: the logits after a prompt, and the likeliest ids after it.

    transformers_greedy.py FOLDER OUT N --embeddings FILE
    transformers_greedy.py FOLDER OUT N --text TEXT --speech N,N,...

The prompt is the tensor `prompt` [n, D] of FILE, or TEXT between the start and the task token, with speech tokens after
it. OUT gets `logits` [V], `ids` [N] and `prompt_ids`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen2ForCausalLM


def load(folder: Path) -> Qwen2ForCausalLM:
    """Strictly: every tensor of the file has a place in the model, and the other way round."""
    config = AutoConfig.from_pretrained(folder)
    model = Qwen2ForCausalLM(config)
    model.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=True)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("n", type=int)
    parser.add_argument("--embeddings", type=Path)
    parser.add_argument("--text")
    parser.add_argument("--speech", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load(arguments.folder)
    prompt_ids = []
    if arguments.embeddings is not None:
        prompt = load_file(arguments.embeddings)["prompt"][None]
    else:
        tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
        speech = "".join(f"<|s_{item}|>" for item in arguments.speech.split(","))
        chat = [{"role": "user", "content": arguments.text}, {"role": "assistant", "content": speech}]
        prompt_ids = tokenizer.encode(f"<|sos|>{arguments.text}<|task_id|>{speech}")
        assert tokenizer.apply_chat_template(chat, tokenize=False) == f"<|sos|>{arguments.text}<|task_id|>{speech}"
        assert GenerationConfig.from_pretrained(arguments.folder).eos_token_id[0] == tokenizer.convert_tokens_to_ids(
            "<|eos1|>"
        )
        prompt = model.get_input_embeddings()(torch.tensor([prompt_ids]))
    step = model(inputs_embeds=prompt, use_cache=True)
    logits, ids = step.logits[0, -1], []
    for _ in range(arguments.n):
        drawn = step.logits[0, -1].argmax()
        ids.append(int(drawn))
        step = model(input_ids=drawn[None, None], past_key_values=step.past_key_values, use_cache=True)
    save_file(
        {"logits": logits.clone(), "ids": torch.tensor(ids), "prompt_ids": torch.tensor(prompt_ids)}, arguments.out
    )


if __name__ == "__main__":
    main()
