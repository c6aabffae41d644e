"""Texts and a tokenizer for torchtitan's own reading: some megabytes of the standard library, and its bytes as ids."""

from __future__ import annotations

import json
from pathlib import Path

from engine.data.corpus import documents

CHARACTERS = 5_000_000
"""About what torchtitan's own test corpus has."""
END = "<|end|>"


def assets(work: Path) -> Path:
    """A folder with tokenizer.json, tokenizer_config.json and texts/; made once in `work`."""
    folder = work / "assets"
    if not folder.exists():
        (folder / "texts").mkdir(parents=True)
        _write_texts(folder / "texts" / "data.jsonl")
        _write_tokenizer(folder)
    return folder


def _write_texts(path: Path) -> None:
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for text in documents("stdlib", None):
            if isinstance(text, str) and written < CHARACTERS:
                file.write(json.dumps({"text": text}) + "\n")
                written += len(text)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}), encoding="utf-8")
