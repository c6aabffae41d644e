"""Text to token ids and back: bytes, which need no file, or a `tokenizer.json`.

Knows special tokens: a document becomes [BOS] + its ids + [EOS], each once, where the tokenizer
has such a token. A special token that is spelt out in a document is text, not a command. Does not
know documents or sequences (corpus.py, stream.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.keys import tokenizer_name

Ids: TypeAlias = NDArray[np.unsignedinteger[Any]]

# What the families call them, for a tokenizer.json that comes without a word about it.
_USUAL_BOS = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[BOS]")
_USUAL_EOS = ("<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>", "[EOS]")


class Tokenizer(Protocol):
    """What tokenising asks of a tokenizer. `vocab_used` is its largest id + 1."""

    @property
    def name(self) -> str:
        """`bytes`, or the path of its file."""
        ...

    @property
    def vocab_used(self) -> int:
        """Rows of the model's embedding table that it can reach."""
        ...

    @property
    def bos_id(self) -> int | None:
        """What a document begins with; None where there is no such token."""
        ...

    @property
    def eos_id(self) -> int | None:
        """What a document ends with; None where there is no such token."""
        ...

    @property
    def special(self) -> Mapping[int, str]:
        """The names of the ids that no text becomes."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Each document's ids, special tokens included."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Special tokens stand in it by their names, ids that it does not have as `<id 300>`."""
        ...


def id_dtype(vocab_used: int) -> type[np.unsignedinteger[Any]]:
    """The narrower of uint16 and uint32 that holds every id."""
    return np.uint16 if vocab_used <= 1 << 16 else np.uint32


class ByteTokenizer:
    """UTF-8 bytes are ids 0 to 255; BOS 256, EOS 257."""

    name = "bytes"
    bos_id = 256
    eos_id = 257
    vocab_used = 258
    special: Mapping[int, str] = MappingProxyType({bos_id: "<BOS>", eos_id: "<EOS>"})

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Each document's bytes between BOS and EOS."""
        return [self._frame(text.encode("utf-8")) for text in texts]

    def _frame(self, raw: bytes) -> Ids:
        ids = np.empty(len(raw) + 2, dtype=np.uint16)
        ids[0], ids[-1] = self.bos_id, self.eos_id
        ids[1:-1] = np.frombuffer(raw, dtype=np.uint8)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes as UTF-8; what is none is the sign for that."""
        known = [self.special.get(id_, _unknown(id_)).encode() if id_ > 255 else bytes((id_,)) for id_ in ids]
        return b"".join(known).decode("utf-8", errors="replace")


class FileTokenizer:
    """A `tokenizer.json` of Hugging Face, with the special tokens that the files beside it name."""

    def __init__(self, path: str | Path) -> None:
        """Reads the file, or the one in the folder; TitanError D206 where it cannot be used."""
        file = _tokenizer_file(Path(os.path.expanduser(path)), str(path))
        self.name = str(file)
        self._tokenizer = _load(file)
        # Files may carry the settings of an application: documents would be cut to its length.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab_used = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.bos_id = self._special("bos_token", file, _USUAL_BOS)
        self.eos_id = self._special("eos_token", file, _USUAL_EOS)
        self._dtype = id_dtype(self.vocab_used)

    @cached_property
    def special(self) -> Mapping[int, str]:
        """Those that the file says are special, and those that documents are framed with."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        frame = (id_ for id_ in (self.bos_id, self.eos_id) if id_ is not None)
        return {id_: str(self._tokenizer.id_to_token(id_)) for id_ in frame} | {
            id_: token.content for id_, token in added if token.special
        }

    def _special(self, field: str, file: Path, usual: tuple[str, ...]) -> int | None:
        """The id of a special token: as the files beside `tokenizer.json` say, else by its usual names."""
        named, token = _named_token(file.parent, field)
        if not named:
            known = (self._tokenizer.token_to_id(name) for name in usual)
            return next((id_ for id_ in known if id_ is not None), None)
        if token is None:
            return None
        id_: int | None = self._tokenizer.token_to_id(token)
        if id_ is None:
            raise TitanError(_broken(f'{file} does not have the {field} "{token}" that the files beside it name'))
        return id_

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Each document's ids between BOS and EOS, which are never doubled."""
        # Without special tokens, because the file's own post-processor may add one, both or none.
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(self.frame(encoding.ids), dtype=self._dtype) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens by their names."""
        parts: list[str] = []
        for known, run in groupby(ids, key=lambda id_: self._tokenizer.id_to_token(id_) is not None):
            alike = [*run]
            parts += [self._tokenizer.decode(alike, skip_special_tokens=False)] if known else map(_unknown, alike)
        return "".join(parts)

    def frame(self, ids: list[int]) -> list[int]:
        """BOS + ids + EOS; one that is there already is not put a second time."""
        bos = [] if self.bos_id is None else [self.bos_id]
        eos = [] if self.eos_id is None else [self.eos_id]
        if bos and ids[:1] == bos:
            ids = ids[1:]
        if eos and ids[-1:] == eos:
            ids = ids[:-1]
        return bos + ids + eos


def _unknown(id_: int) -> str:
    return f"<id {id_}>"


def _tokenizer_file(path: Path, as_written: str) -> Path:
    file = path / "tokenizer.json" if os.path.isdir(path) else path
    if not os.path.isfile(file):
        missing = "holds no tokenizer.json" if os.path.isdir(path) else "is not there"
        raise TitanError(_broken(f"the tokenizer {as_written} {missing}"))
    return file


def _load(file: Path) -> Any:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    try:
        return HuggingFaceTokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise TitanError(_broken(f"{file} is not a tokenizer.json: {error}")) from error


def _named_token(folder: Path, field: str) -> tuple[bool, str | None]:
    """Whether the files beside a tokenizer say what `field` is, and what; None says there is none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            settings = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise TitanError(_broken(f"{file} cannot be read: {error}")) from error
        if isinstance(settings, dict) and field in settings:
            token = settings[field]
            content = token.get("content") if isinstance(token, dict) else token
            return True, content if isinstance(content, str) else None
    return False, None


def _broken(message: str) -> Finding:
    return Finding(
        rule="D206",
        severity="error",
        key="data.tokenizer",
        message=message,
        fix='name a tokenizer.json (or its folder), or set data.tokenizer = "bytes"',
    )


def tokenizer_of(config: Config) -> Tokenizer:
    """`data.tokenizer`, else the one of `model.hf_assets_path`, else bytes."""
    name = tokenizer_name(config)
    return ByteTokenizer() if name == "bytes" else FileTokenizer(name)


def vocabulary_findings(tokenizer: Tokenizer, vocab_size: int) -> tuple[Finding, ...]:
    """D207 where ids of the tokenizer lie outside the model's table; a smaller tokenizer is fine."""
    short = tokenizer.vocab_used - vocab_size
    if short <= 0:
        return ()
    return (
        Finding(
            rule="D207",
            severity="error",
            key="model.shape.vocab_size",
            message=(
                f"the tokenizer {tokenizer.name} has ids up to {tokenizer.vocab_used - 1:,}, the model's vocab_size = "
                f"{vocab_size:,} is {short:,} short"
            ),
            fix=f"set model.shape.vocab_size to {tokenizer.vocab_used} or more, or take this model's own tokenizer",
        ),
    )
