"""All data of a config, read once as a run reads it: what `launch` says before it starts, and `data check` looks into.

Knows which corpora a run reads, that large ones are prepared first, and where the keys of what is refused were written.
Does not know how data is read (engine/data), nor how much is seen without reading it all (corpus).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from engine.config import Config
from engine.errors import TitanError
from engine.planner.plan import Plan
from engine.sources import Loaded
from titancli import figures, report
from titancli.corpus import about, look_at_beginning, placed

if TYPE_CHECKING:
    from engine.data.large import Large
    from engine.data.loader import Loader
    from engine.data.reads import Reads
    from engine.data.tokenizer import Tokenizer


def read_corpus(loaded: Loaded, plan: Plan, *, prepares: bool = True) -> str:
    """Reads the whole corpora once and says in a line each what is there; TitanError where they cannot be read.

    A large one is prepared, unless its tokens are there already. Where nothing is to be written (not `prepares`), its
    beginning is looked at, and the run will prepare it.
    """
    from engine.data.summary import validation_text
    from engine.data.tokenizer import tokenizer_of

    config = loaded.config
    with places(loaded):
        tokenizer = tokenizer_of(config)
    lines = []
    for reads in all_reads(config):
        named = reads.corpora[0]
        if is_while_it_arrives(config, reads):
            lines.append(f"{named.dataset} {named.path}: read while it arrives")
            continue
        with places(loaded, reads):
            large = _large(reads, config, tokenizer)
            if not prepares and not all(each.is_there for each in large):
                lines.append(_look_at_large(large, loaded))
                continue
        loader = loader_of(loaded, plan, reads, tokenizer)
        lines.append(validation_text(loader.summary, loader.index, config) if reads.to_the_end else loader.summary.text)
    return "\n  ".join([lines[0], *(f"validation: {line}" for line in lines[1:])])


def all_reads(config: Config) -> list[Reads]:
    """What a run reads: of training, and of validation where there is any."""
    from engine.data.reads import training_reads, validation_reads

    return [training_reads(config), *([validation_reads(config)] if config.validation.enable else [])]


def is_while_it_arrives(config: Config, reads: Reads) -> bool:
    """Whether corpora are read only while a run trains on them."""
    from engine.data.reads import is_streamed

    return is_streamed(config) and not reads.to_the_end


def loader_of(
    loaded: Loaded,
    plan: Plan,
    reads: Reads,
    tokenizer: Tokenizer,
    *,
    on_record: Callable[[], None] | None = None,
    stream: TextIO | None = None,
) -> Loader:
    """The loader of a run's first data rank, all its corpora read, the large ones prepared first.

    What is prepared is told on `stream` (default: stdout), and `on_record` is called at every record that is read
    here. TitanError where a run is refused, at the keys that name the corpora.
    """
    from engine.data.large import with_prepared
    from engine.data.loader import Loader

    with places(loaded, reads):
        large = _large(reads, loaded.config, tokenizer)
        for each in large:
            _prepare(each, stream)
        reads = with_prepared(reads, large)
        return Loader(loaded.config, plan, data_rank=0, tokenizer=tokenizer, reads=reads, on_record=on_record)


@contextmanager
def places(loaded: Loaded, reads: Reads | None = None) -> Iterator[None]:
    """Has what is refused within the block point at where its key was written: those of `reads`, if it is of those."""
    try:
        yield
    except TitanError as mistake:
        mine = (finding if reads is None else about(reads, finding) for finding in mistake.findings)
        raise TitanError(*(placed(loaded, finding) for finding in mine)) from None


def _large(reads: Reads, config: Config, tokenizer: Tokenizer) -> list[Large]:
    from engine.data.large import large_corpora

    return large_corpora(reads, config, tokenizer)


def _prepare(large: Large, stream: TextIO | None) -> None:
    """Prepares a corpus, and says what is left of it from before."""
    from engine.data.large import left_of, prepare_all
    from titancli.preparing import shown

    if large.is_there:
        # Its files may still have been cut since.
        prepare_all([large], told=lambda _: None)
        return
    with shown(large.corpus.made_from, large.folder, stream) as show:
        prepare_all([large], told=show)
    for folder in left_of(large):
        report.say(
            f"  {folder} holds tokens of the same corpus as it was, or otherwise made: delete it if no run needs it",
            stream,
        )


def _look_at_large(large: Sequence[Large], loaded: Loaded) -> str:
    """What the beginnings of large corpora hold; TitanError where a run would be refused for it."""
    told = []
    for each in large:
        if each.named.dataset == "bins":
            told.append(f"bins: {figures.memory(each.corpus.bytes)}, looked through by the run ({each.folder})")
            continue
        seen = look_at_beginning(each.named, loaded.config)
        told.append(f"{seen.text.partition('; ')[0]}; the run prepares it in {each.folder}")
    return ", ".join(told)
