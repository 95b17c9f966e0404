"""A tokenizer for a model of random weights: byte-level BPE, learned from what Python brings along."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids are their positions; the first pads, the first and last end an answer."""

BYTES: Final = 256
MAX_MERGES: Final = 7936
"""Merges learned at most; more words than 8192 say little and take long to learn."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(directory: Path, vocab_size: int, max_tokens: int) -> None:
    """Byte-level BPE learned from Python's own manual; ids beyond it are spare words, so that each has a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, BYTES + len(SPECIAL_TOKENS) + MAX_MERGES),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    tokenizer.add_tokens([f" spare{token_id}" for token_id in range(tokenizer.get_vocab_size(), vocab_size)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
