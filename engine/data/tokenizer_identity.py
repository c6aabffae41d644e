"""Which tokenizer made token ids: what has to be equal for ids to mean the same.

Knows the bytes of its file and its special tokens. Does not know how text becomes ids (tokenizer.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from engine.data.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """`digest` is of the file's bytes, empty for `bytes`; ids are None where there is no such token.

    `name` is for people: the same file may lie elsewhere on another machine.
    """

    name: str
    digest: str
    bos_id: int | None
    eos_id: int | None
    vocab_used: int

    def is_same(self, other: TokenizerIdentity) -> bool:
        """Whether both give the same ids for the same text."""
        return self._meaning == other._meaning

    @property
    def _meaning(self) -> tuple[str, int | None, int | None, int]:
        return self.digest, self.bos_id, self.eos_id, self.vocab_used

    @property
    def text(self) -> str:
        """For people: where it is, and what tells it from others."""
        digest = f", {self.digest[:8]}" if self.digest else ""
        return f"{self.name} ({self.vocab_used:,} ids, BOS {self.bos_id}, EOS {self.eos_id}{digest})"


def identity_of(tokenizer: Tokenizer) -> TokenizerIdentity:
    """The identity of a tokenizer; its file is read for it."""
    digest = ""
    if tokenizer.name != "bytes":
        with open(tokenizer.name, "rb") as file:
            digest = blake2b(file.read(), digest_size=16).hexdigest()
    return TokenizerIdentity(
        name=tokenizer.name,
        digest=digest,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        vocab_used=tokenizer.vocab_used,
    )
