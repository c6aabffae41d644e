"""A speed that a layout cannot exceed, known before its memory and its time are.

Knows that no pipeline rank is faster than the mean of all; that kernels and what tensor and context parallel send are
the same however the rest of the world is laid out; and the least bubble of a schedule. So a way whose bound is
below what another reached needs no closer look.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from engine.config import Config
from engine.hardware import Cluster
from engine.planner.batch import MICROBATCHES_A_RANK, Batch
from engine.planner.comms import group_of, links_of
from engine.planner.kernels import kernels_of
from engine.planner.recompute import recompute_choices
from engine.planner.schedule import ZERO_BUBBLE
from engine.planner.search.evaluate import Ways
from engine.planner.search.layouts import Layout
from engine.planner.search.options import Options
from engine.planner.stack import TITAN
from engine.planner.stage_seconds import Stages
from engine.planner.timing import slowest_of

# One sequence is sent as it lies, many make large products: a token takes least with one or the other.
_SEQUENCES = (1, 256)
# Still larger products, or whole waves of tiles, gain less than this.
_ROUNDING = 1.001


class Bound:
    """Bounds for one question; what layouts have in common is timed once."""

    def __init__(self, config: Config, cluster: Cluster, ways: Ways) -> None:
        self._config, self._cluster, self._ways = config, cluster, ways
        self._token_s: dict[tuple[int, int, Options], float] = {}

    def tokens_per_s(self, layout: Layout, options: Options) -> float:
        """Tokens a second of one GPU that no batch exceeds; inf where no rate is known."""
        key = layout.mesh.tp, layout.mesh.cp, options
        if key not in self._token_s:
            self._token_s[key] = min(self._least_s(layout, options, sequences) for sequences in _SEQUENCES)
        token_s = self._token_s[key]
        return _ROUNDING / (token_s * (1 + self._bubble(layout))) if token_s else inf

    def _bubble(self, layout: Layout) -> float:
        """The least share of its work that a rank waits for, with as many microbatches as are ever tried."""
        mesh, training = layout.mesh, self._config.training
        if layout.schedule in ZERO_BUBBLE:
            return 0.0
        given = training.local_batch_size if training.local_batch_size != "auto" else 0
        most = max(MICROBATCHES_A_RANK * mesh.pp, training.global_batch_size // mesh.data_ranks, given)
        return (mesh.pp - 1) / (most * layout.stages_a_rank)

    def _least_s(self, layout: Layout, options: Options, sequences: int) -> float:
        """Seconds of a GPU for one token's share of what is the same in all layouts; 0 where no rate is known."""
        kernels = kernels_of(self._cluster, TITAN)
        if kernels is None:
            return 0.0
        mesh = layout.mesh
        flat = Layout(mesh=replace(mesh, pp=1, dp_replicate=1, dp_shard=mesh.dp_shard * mesh.dp_replicate * mesh.pp))
        held = self._ways.of(flat, options).held
        links = links_of(self._cluster)
        tp, cp = group_of(flat.mesh, "tp", links), group_of(flat.mesh, "cp", links)
        if tp is None or cp is None:
            return 0.0
        work = held.work(Batch(local=sequences, microbatch=sequences))
        stages = Stages(
            held.config,
            work,
            recompute_choices(held.config.activation_checkpoint)[0],
            stage_count=1,
            slower=slowest_of(mesh.world_size),
            kernels=kernels,
            tp=tp,
            cp=cp,
            stack=TITAN,
        )
        return stages.of(0, tuple(range(held.shape.n_layers))).time.total_s * mesh.tp / work.tokens
