"""What there is to be prepared of a corpus before anything is read: files, parts, and what tells it from others.

Knows sizes and times of change. Does not know how a part becomes tokens (prepare_text.py, bins.py), nor where they go
(prepare.py).
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import Any

from engine.config import Config
from engine.data.bin_formats import bin_files
from engine.data.bins import BinPart, bin_parts
from engine.data.prepare_text import HubPart, TextPart, hub_parts, text_parts
from engine.data.prepared import VERSION, MadeFrom
from engine.data.reads import Named
from engine.data.tokenizer import Tokenizer
from engine.data.tokenizer_identity import TokenizerIdentity, identity_of

# What compressed files hold at least, by experience with text.
_EXPANSION = {".gz": 3, ".zst": 3, ".parquet": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of a corpus; `mtime_ns` is when it was changed, `bytes` -1 where it cannot be looked at."""

    file: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A corpus that is to be prepared. `key` is the config key that names it, `parts` are in the order of documents."""

    key: str
    made_from: MadeFrom
    tokenizer: TokenizerIdentity
    files: tuple[SourceFile, ...]
    parts: tuple[TextPart | HubPart | BinPart, ...]

    @property
    def name(self) -> str:
        """Of the folder for its tokens: another one for every change of files, tokenizer or policy."""
        return _digest(VERSION, *self._meaning, self.made_from.digest)

    @property
    def bytes(self) -> int:
        """What is to be read."""
        return sum(part.bytes for part in self.parts)

    @property
    def text_bytes(self) -> int:
        """About how much text there is at least: compressed files hold more than they take."""
        return sum(part.bytes * _EXPANSION.get(_suffix(part), 1) for part in self.parts)

    @property
    def skips_unreadable(self) -> bool:
        """Whether records that cannot be read are left out."""
        return self.made_from.on_bad_line == "skip"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of each part: what was made of it can be kept as long as this is the same."""
        known = {file.file: astuple(file) for file in self.files}
        files = ([known[name] for name in part.files] for part in self.parts)
        return tuple(
            _digest(VERSION, *self._meaning, repr(part), *of) for part, of in zip(self.parts, files, strict=True)
        )

    @property
    def _meaning(self) -> tuple[Any, ...]:
        made, tokenizer = self.made_from, self.tokenizer
        ids = (tokenizer.digest, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_used)
        return made.dataset, made.text_field, made.on_bad_line, ids


def survey(named: Named, config: Config, tokenizer: Tokenizer) -> Survey:
    """Looks at the files of a corpus, and reads no text; TitanError where there is no such corpus."""
    text_field = config.data.text_field
    parts: list[TextPart] | list[HubPart] | list[BinPart]
    if named.dataset == "bins":
        bins = bin_files(named.path, key=named.key)
        parts = bin_parts(bins, tokenizer)
        names = [name for file in bins for name in file.files]
    elif named.dataset == "huggingface":
        parts, names = hub_parts(named.path, text_field=text_field), []
    else:
        parts = text_parts(named.dataset, named.path, text_field=text_field)
        names = list(dict.fromkeys(name for part in parts for name in part.files))
    files = tuple(source_file(name) for name in names)
    return Survey(
        key=named.key,
        made_from=MadeFrom(
            dataset=named.dataset,
            path=named.path or "",
            text_field=text_field,
            on_bad_line=config.data.on_bad_line,
            files=len(files),
            bytes=sum(part.bytes for part in parts),
            digest=_digest(digest_of(files), *(part.fingerprint for part in parts[:1] if isinstance(part, HubPart))),
        ),
        tokenizer=identity_of(tokenizer),
        files=files,
        parts=tuple(parts),
    )


def source_file(name: str) -> SourceFile:
    """A file as it is now."""
    try:
        found = os.stat(name)
    except OSError:
        return SourceFile(file=name, bytes=-1, mtime_ns=0)
    return SourceFile(file=name, bytes=found.st_size, mtime_ns=found.st_mtime_ns)


def digest_of(files: tuple[SourceFile, ...]) -> str:
    """Of names, sizes and times of change."""
    return _digest(*(astuple(file) for file in files))


def _suffix(part: TextPart | HubPart | BinPart) -> str:
    """Of the first file of a part, which the others of a corpus are like."""
    return os.path.splitext(part.files[0])[1].lower() if part.files else ""


def _digest(*values: Any) -> str:
    return blake2b(repr(values).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
