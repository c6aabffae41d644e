"""What rules judge: numbers worked out from a config, each only when a rule asks for it.

Knows how the keys of one config go together (shape, mesh, stages, microbatches). Does not know
which of them are wrong (rules/) or where they were written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd, lcm
from typing import Any, Literal

from engine.calibration import CalibrationError
from engine.config import Config, Float8, Mx
from engine.hardware import Cluster, resolve_cluster
from engine.legal import divisors
from engine.planner.plan import Mesh, Plan, plan, resolve_local_batch, resolve_mesh
from engine.planner.schedule import layers_of_stages, most_stages, stages_of_a_rank, takes_stages
from engine.planner.stack import TITAN, Stack
from engine.shapes import ModelShape, block_parameters, shape_of

Need = Literal["config", "cluster", "flavor", "model", "degrees", "split", "mesh", "pipeline", "batch", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer: K inputs, N outputs, and which of the two tensor parallel cuts."""

    name: str
    k: int
    n: int
    cut: Literal["k", "n"]

    def after(self, tp: int) -> tuple[int, int]:
        """K and N on the tensor rank that holds most."""
        return (-(-self.k // tp), self.n) if self.cut == "k" else (self.k, -(-self.n // tp))


class Facts:
    """Numbers over one config; each is worked out once, when first asked for.

    `facts["name"]` is what the text of a rule sees: a fact, or a section of the config. `stack` is the
    implementation that the plan is made for.
    """

    def __init__(self, config: Config, cluster: Cluster | None = None, *, stack: Stack = TITAN) -> None:
        self.config = config
        self.stack = stack
        self.given_cluster = cluster

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if hasattr(type(self), name) else getattr(self.config, name)

    def has(self, need: Need) -> bool:
        """Whether what a rule builds on is sound, so that it can be judged at all."""
        match need:
            case "config":
                return True
            case "cluster":
                return self.cluster is not None
            case "flavor":
                return self.shape is not None
            case "model":
                shape = self.shape
                return shape is not None and shape.head_dim > 0 and shape.n_heads % shape.n_kv_heads == 0
            case "degrees":
                return self.degrees_are_sound
            case "split":
                return self.has("model") and self.degrees_are_sound
            case "mesh":
                return self.degrees_are_sound and self.has("cluster") and self.mesh is not None
            case "pipeline":
                return self.has("split") and self.stages_are_sound
            case "batch":
                return self.has("mesh") and self.has("pipeline")
            case "plan":
                return self.has("batch")

    # ── cluster and mesh ──

    @cached_property
    def _found(self) -> Cluster | str | CalibrationError:
        if self.given_cluster is not None:
            return self.given_cluster
        try:
            return resolve_cluster(self.config.cluster)
        except LookupError as error:
            return str(error.args[0])
        except CalibrationError as error:
            return error

    @property
    def cluster(self) -> Cluster | None:
        """The hardware; None where this machine's GPU is not in the table, or its calibration is damaged."""
        return self._found if isinstance(self._found, Cluster) else None

    @property
    def unknown_gpu(self) -> str | None:
        """Name of this machine's GPU where the table does not have it."""
        return self._found if isinstance(self._found, str) else None

    @property
    def calibration_trouble(self) -> str | None:
        """What is wrong with the calibration that is to be used."""
        return self._found.message if isinstance(self._found, CalibrationError) else None

    @property
    def known_cluster(self) -> Cluster:
        """The hardware, for rules that need `cluster`."""
        assert self.cluster is not None, "a rule that needs the cluster is judged only where it is known"
        return self.cluster

    @property
    def world_size(self) -> int:
        """Processes of the cluster."""
        return self.known_cluster.world_size

    @cached_property
    def degrees(self) -> dict[str, int]:
        """Degrees as written, by key name, outermost axis first."""
        p = self.config.parallelism
        return {
            "pipeline_parallel_degree": p.pipeline_parallel_degree,
            "data_parallel_replicate_degree": p.data_parallel_replicate_degree,
            "data_parallel_shard_degree": p.data_parallel_shard_degree,
            "context_parallel_degree": p.context_parallel_degree,
            "tensor_parallel_degree": p.tensor_parallel_degree,
        }

    @property
    def degrees_are_sound(self) -> bool:
        """Whether every degree is at least 1, or -1 where that means the rest."""
        return all(
            degree >= 1 or (degree == -1 and name == "data_parallel_shard_degree")
            for name, degree in self.degrees.items()
        )

    @property
    def other_degrees(self) -> int:
        """Product of all degrees but data_parallel_shard_degree."""
        replicate, pp, cp, tp = (self.degrees[name] for name in self.degrees if name != "data_parallel_shard_degree")
        return replicate * pp * cp * tp

    @cached_property
    def mesh(self) -> Mesh | None:
        """The mesh; None where the degrees do not multiply to the world size."""
        return resolve_mesh(self.config.parallelism, self.world_size)

    @property
    def known_mesh(self) -> Mesh:
        """The mesh, for rules that need it."""
        assert self.mesh is not None, "a rule that needs the mesh is judged only where there is one"
        return self.mesh

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.config.parallelism.tensor_parallel_degree

    @property
    def cp(self) -> int:
        """Context-parallel degree."""
        return self.config.parallelism.context_parallel_degree

    @property
    def pp(self) -> int:
        """Pipeline-parallel degree."""
        return self.config.parallelism.pipeline_parallel_degree

    # ── model ──

    @cached_property
    def shape(self) -> ModelShape | None:
        """The model's numbers; None for an unknown flavor."""
        try:
            return shape_of(self.config.model)
        except KeyError:
            return None

    @property
    def known_shape(self) -> ModelShape:
        """The model's numbers, for rules that need them."""
        assert self.shape is not None, "a rule that needs the model is judged only where it is known"
        return self.shape

    @property
    def legal_tp(self) -> list[int]:
        """Tensor-parallel degrees that leave whole query and KV heads on every rank."""
        return divisors(gcd(self.known_shape.n_heads, self.known_shape.n_kv_heads))

    def linears(self, section: Float8 | Mx) -> tuple[Linear, ...]:
        """Linear layers that low precision is asked for.

        Blocks are alike: a name stands for all of them that the filters leave in any block.
        """
        return _linears(self.known_shape, tuple(section.filter_fqns))

    # ── sequence, pipeline and batch ──

    @property
    def balances(self) -> bool:
        """Whether a sequence is cut in an early and a late piece for every context rank."""
        p = self.config.parallelism
        wanted = p.context_parallel_load_balance
        return self.cp > 1 and p.context_parallel_method != "ulysses" and wanted != "none"

    @property
    def sequence_pieces(self) -> int:
        """Least factor of seq_len: seq_len % 2cp = 0 with balance, and seq_len / cp splits again over tp."""
        return self.cp * (lcm(2, self.tp) if self.balances else self.tp)

    @property
    def low_precision(self) -> tuple[Float8 | Mx, int] | None:
        """The low precision in force and the block that its sizes must be multiples of."""
        dense = self.config.quantize.dense
        if dense.float8.enable:
            return dense.float8, 16
        return (dense.mx, 32) if dense.mx.enable else None

    @property
    def needs_whole_token_blocks(self) -> bool:
        """Whether the weight gradient, which sums over tokens, is computed in low precision too."""
        found = self.low_precision
        return found is not None and found[0].recipe_name != "rowwise_with_gw_hp"

    @property
    def microbatch_tokens(self) -> int:
        """Tokens that one rank's matrix products see at once (M)."""
        return self.microbatch_size * self.config.training.seq_len // self.cp

    @property
    def sequence_step(self) -> int:
        """Least factor of seq_len that satisfies every rule about it."""
        step = self.sequence_pieces
        if self.low_precision is not None and self.needs_whole_token_blocks and self.has("pipeline"):
            _, block = self.low_precision
            step = lcm(step, block * self.cp // gcd(block * self.cp, self.microbatch_size))
        return step

    @cached_property
    def stages_a_rank(self) -> int | None:
        """Pipeline stages of each rank; None where layers_per_stage does not give each equally many."""
        return stages_of_a_rank(self.config.parallelism, self.known_shape.n_layers, stack=self.stack)

    @property
    def stage_count(self) -> int:
        """Pipeline stages in all."""
        return self.pp * (self.stages_a_rank or 1)

    @property
    def most_stages(self) -> int:
        """Stages that the layers make at most."""
        return most_stages(self.known_shape.n_layers, self.stack)

    @property
    def stages_are_sound(self) -> bool:
        """Whether the layers give every pipeline rank equally many stages, none of them empty."""
        return self.stages_a_rank is not None and self.stage_count <= self.most_stages

    @property
    def _schedule_takes_stages(self) -> bool:
        schedule = self.config.parallelism.pipeline_parallel_schedule
        return self.pp == 1 or takes_stages(schedule, self.stages_a_rank or 1)

    @property
    def layer_counts(self) -> list[int]:
        """Layers of each stage, first to last."""
        stages = layers_of_stages(self.known_shape, self.config.parallelism, self.stage_count)
        return [len(layers) for layers in stages]

    @cached_property
    def local_batch(self) -> int:
        """Sequences of one data rank in one accumulation step; `auto` as the Plan resolves it, once it can."""
        if self.config.training.local_batch_size == "auto" and self.has("plan") and self._schedule_takes_stages:
            return self.plan.local_batch_size
        return resolve_local_batch(self.config, self.stage_count)

    @property
    def microbatch_size(self) -> int:
        """Sequences that go through a stage at once."""
        return self.config.parallelism.pipeline_parallel_microbatch_size if self.pp > 1 else self.local_batch

    @property
    def microbatches(self) -> int:
        """Pipeline microbatches of one accumulation step, rounded down."""
        return self.local_batch // self.microbatch_size

    @property
    def batch_step(self) -> int:
        """Sequences that all data ranks take in one accumulation step."""
        return self.local_batch * self.known_mesh.data_ranks

    @cached_property
    def plan(self) -> Plan:
        """The Plan; only for a config without errors."""
        return plan(self.config, self.known_cluster, stack=self.stack)


@cache
def _linears(shape: ModelShape, filters: tuple[str, ...]) -> tuple[Linear, ...]:
    found: list[Linear] = []
    for full_name, weight in block_parameters(shape).items():
        if len(weight.shape) != 2:
            continue
        name = full_name.removesuffix(".weight")
        in_blocks = (f"layers.{layer}.{name}" for layer in range(shape.n_layers))
        if all(any(part in each for part in filters) for each in in_blocks):
            continue
        n, k = weight.shape
        found.append(Linear(name=name, k=k, n=n, cut="n" if weight.split == "rows" else "k"))
    if not any(part in "output" for part in filters):
        found.append(Linear(name="output", k=shape.dim, n=shape.vocab_size, cut="n"))
    return tuple(found)
