"""The answers that `titan init` proposes, each with its reason: from the machine, the model's size and its authors.

Knows what weights, gradients and optimizer states take. Does not know whether a layout fits (the search does).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Config
from engine.hardware import GPUS, Machine, kind_of
from engine.shapes import FLAVORS, ModelShape, parameter_count, shape_of
from titancli import figures
from titancli.init.known import Known

# Weights, gradients and two moments of Adam.
_COPIES = 4
# What they may take of the memory of all GPUs: activations, gathered weights and the allocator want the rest.
_SHARE = 0.6
_MOST_NODES = 4096
_USUAL_GPU, _USUAL_MODEL = "h100-80", {"llama3": "8B", "llama2": "7B", "qwen3": "8B"}
# Before it was stretched (arXiv 2407.21783, 2307.09288, 2505.09388).
_PRETRAINED_TOKENS = {"llama3": 8192, "llama2": 4096, "qwen3": 4096}
# Up to here a processor steps in seconds.
_SMALL_PARAMETERS = 100e6
_SMALL_TOKENS, _PROCESSOR_TOKENS = 2048, 512
_PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """An answer, and why it is proposed."""

    value: str
    reason: str


def kind_here(machine: Machine) -> str | None:
    """This machine's GPU as the table calls it; None without one, or where the table does not have it."""
    return kind_of(machine.gpu_names[0], machine.gpu_memory_bytes[0]) if machine.gpu_names else None


def is_cpu(known: Known) -> bool:
    """Whether processors train, as far as is known."""
    kind = known.config.cluster.gpu if "cluster.gpu" in known.given else gpu(known).value
    return kind == "cpu" or (kind == "auto" and not known.machine.gpu_names)


def model(known: Known) -> Default:
    """The largest of a family that the GPUs hold with ease; the usual one where none are known."""
    family = known.config.model.name
    if "cluster.gpu" in known.given and is_cpu(known):
        return Default(value=f"{family} debugmodel", reason="small enough for processors")
    if "cluster.gpu" not in known.given and kind_here(known.machine) is None:
        here = f"this machine's {known.machine.gpu_names[0]} is not in the table" if known.machine.gpu_names else ""
        reason = f"{here or 'no GPU is here to choose it by'}; one node of 8 GPUs trains this one"
        return Default(value=f"{family} {_USUAL_MODEL[family]}", reason=reason)
    nodes_given = known.config.cluster.nodes if "cluster.nodes" in known.given else 1
    room_bytes = nodes_given * _node_bytes(known)
    held = [name for name, shape in FLAVORS[family].items() if _state_bytes(known.config, shape) <= _SHARE * room_bytes]
    reason = f"the largest of {family} whose weights, gradients and optimizer states take up to {100 * _SHARE:.0f} % "
    reason += f"of the {figures.memory(room_bytes)} of the GPUs"
    return Default(value=f"{family} {held[-1] if held else 'debugmodel'}", reason=reason)


def gpu(known: Known) -> Default:
    """The GPUs that are here; without any, processors for a model that they can train, else a usual GPU."""
    here = kind_here(known.machine)
    if here is not None:
        return Default(value=here, reason=f"found here: {len(known.machine.gpu_names)} x {known.machine.gpu_names[0]}")
    if known.machine.gpu_names:
        reason = f"this machine's {known.machine.gpu_names[0]} is not in the table; most clusters have this one"
        return Default(value=_USUAL_GPU, reason=reason)
    if "model.flavor" in known.given and _is_small(known.config):
        return Default(value="cpu", reason="no GPU is here, and processors can train a model this small")
    return Default(value=_USUAL_GPU, reason="no GPU is here; most clusters have this one")


def nodes(known: Known) -> Default:
    """The fewest machines, by doubling, that hold a model with ease."""
    state_bytes, node_bytes = _state_bytes(known.config, shape_of(known.config.model)), _node_bytes(known)
    count = 1
    while state_bytes > _SHARE * node_bytes * count and count < _MOST_NODES:
        count *= 2
    share = 100 * state_bytes / (node_bytes * count)
    taken = f"weights, gradients and optimizer states take {figures.memory(state_bytes)}"
    machines = "one machine" if count == 1 else f"{count} machines"
    reason = f"{taken}, {share:.0f} % of the {figures.memory(node_bytes * count)} of {machines}"
    return Default(value=str(count), reason=reason)


def gpus_per_node(known: Known) -> Default:
    """Those that are here, where it is this machine's kind; else those of a usual node, or two processes."""
    kind = known.config.cluster.gpu if "cluster.gpu" in known.given else gpu(known).value
    if known.machine.gpu_names and kind in ("auto", kind_here(known.machine)):
        return Default(value=str(len(known.machine.gpu_names)), reason="as many as are here")
    if kind not in GPUS:
        if known.machine.cpus < _PROCESSES:
            return Default(value="1", reason="one processor is here")
        reason = f"{known.machine.cpus} processors are here; two processes shard a model"
        return Default(value=str(_PROCESSES), reason=reason)
    return Default(value=str(GPUS[kind].usual_gpus_per_node), reason=f"a usual node of {kind} has so many")


def seq_len(known: Known) -> Default:
    """What the model's authors trained with; less where it is small."""
    if not _is_small(known.config):
        reason = f"what the authors of {known.config.model.name} pretrained with"
        return Default(value=str(_PRETRAINED_TOKENS[known.config.model.name]), reason=reason)
    if is_cpu(known):
        return Default(value=str(_PROCESSOR_TOKENS), reason="short enough for processors")
    return Default(value=str(_SMALL_TOKENS), reason="enough for a model this small")


def goal(known: Known) -> Default:
    """A prototype where the model is small or processors train it."""
    if _is_small(known.config) or is_cpu(known):
        return Default(value="prototype", reason="small models and processors are for trying things")
    return Default(value="production", reason="for runs of days: memory to spare, and what many have run")


def _is_small(config: Config) -> bool:
    return parameter_count(shape_of(config.model)) <= _SMALL_PARAMETERS


def _state_bytes(config: Config, shape: ModelShape) -> int:
    width = 4 if config.training.dtype == "float32" else 2
    return _COPIES * width * parameter_count(shape)


def _node_bytes(known: Known) -> int:
    """Memory of all GPUs of one machine, as far as is known."""
    if is_cpu(known):
        return known.machine.memory_bytes
    kind = known.config.cluster.gpu if "cluster.gpu" in known.given else gpu(known).value
    kind = kind if kind in GPUS else kind_here(known.machine) or _USUAL_GPU
    count = known.config.cluster.gpus_per_node if "cluster.gpus_per_node" in known.given else "auto"
    usual = int(gpus_per_node(known).value)
    return GPUS[kind].memory_bytes * (usual if count == "auto" else count)
