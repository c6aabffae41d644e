"""Alerts W201 to W209 and W215: where a step loses time, and what to do about it.

Knows the words and the ways out. Does not know when they are true (lost_time), nor which changes are legal (ways_time,
advice).
"""

from __future__ import annotations

from titancli.monitor.alerts.alert import Alert, Way
from titancli.monitor.alerts.lost_time import (
    bubble,
    exposed,
    slow_rank,
    slower_than_planned,
    unbalanced,
    waits_for_data,
    waits_for_host,
)
from titancli.monitor.alerts.ways_time import (
    by_freed_weights,
    by_larger_batch,
    by_layers,
    by_less_context,
    by_less_tensor,
    by_method,
    by_microbatches,
    by_other_depth,
    by_overlap,
    by_replicas,
    by_schedule,
    by_shards,
    compiled,
)

_LARGER_BATCH = "larger pieces: training.local_batch_size, with less accumulation or a larger global batch"

TIME_ALERTS = (
    Alert(
        id="W201",
        key="training.dataset_path",
        cases=waits_for_data,
        message="{ranks} {share:.0f} % of the step for data",
        fix="look at what else the processors of {host} do, and whether its memory is full: batches are cut from "
        "tokens that the training process holds in memory, which takes milliseconds where it may run",
        why="nothing computes while the next batch is read; a batch is read while the step before it runs, so that "
        "only what takes longer than that step is seen",
    ),
    Alert(
        id="W202",
        key="compile.enable",
        cases=waits_for_host,
        message="GPUs wait {share:.0f} % of the step for their host, which launches kernels too slowly",
        fix="look at what else the processors of the hosts do; more work a kernel (a longer training.seq_len) hides it",
        ways=(
            Way(told="compile.enable = true: fewer kernels", edits=compiled, least_gain_pct=None),
            Way(told=_LARGER_BATCH, edits=by_larger_batch, least_gain_pct=None),
        ),
        why="the next kernel had not been launched when the GPU was done with the one before: Python, not the GPU, "
        "sets the pace",
    ),
    Alert(
        id="W203",
        key="parallelism.tensor_parallel_degree",
        cases=exposed("tp"),
        message="tensor-parallel collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the GPUs of a node: titan doctor says what they are, titan doctor --measure "
        "what they carry",
        ways=(
            Way(
                told="parallelism.enable_async_tensor_parallel = true, with compile",
                edits=by_overlap,
                keeps_layout=True,
            ),
            Way(told="a smaller parallelism.tensor_parallel_degree", edits=by_less_tensor),
        ),
        why="every layer gathers and sums over tensor ranks, and its products need the result; async tensor parallel "
        "sends inside the products",
    ),
    Alert(
        id="W204",
        key="parallelism.data_parallel_shard_degree",
        cases=exposed("dp_shard"),
        message="FSDP's collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the ranks: titan doctor says what they are, titan doctor --measure what they "
        "carry; between nodes, cluster.network_gbit_per_s_per_gpu is what was planned with",
        ways=(
            Way(
                told='parallelism.fsdp_reshard_after_forward = "never", where memory allows',
                edits=by_freed_weights,
                keeps_layout=True,
            ),
            Way(told="replicas of shards inside a node (HSDP)", edits=by_replicas),
            Way(told=_LARGER_BATCH, edits=by_larger_batch),
        ),
        why="weights are gathered and gradients summed in every step, however few tokens it has: what compute does "
        "not cover is waited for",
    ),
    Alert(
        id="W205",
        key="parallelism.context_parallel_degree",
        cases=exposed("cp"),
        message="context-parallel collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the context ranks: titan doctor says what they are, titan doctor --measure "
        "what they carry",
        ways=(
            Way(told="another parallelism.context_parallel_method", edits=by_method, keeps_layout=True),
            Way(told="a smaller parallelism.context_parallel_degree", edits=by_less_context),
        ),
        why="attention needs the keys and values of the whole sequence, which other ranks hold",
    ),
    Alert(
        id="W206",
        key="parallelism.pipeline_parallel_schedule",
        cases=bubble,
        message="the busiest pipeline stage is idle in the bubble {share:.0f} % of the step{planned}",
        fix="give the pipeline more microbatches: a larger training.local_batch_size, with less accumulation or a "
        "larger global batch",
        ways=(
            Way(told="more microbatches", edits=by_microbatches, keeps_layout=True),
            Way(told="an interleaved or zero-bubble schedule", edits=by_schedule, keeps_layout=True),
            Way(told="more microbatches through a larger training.local_batch_size", edits=by_larger_batch),
        ),
        why="a pipeline fills and drains once for every accumulation step: the share of it falls with the number of "
        "microbatches and of stages on a rank",
    ),
    Alert(
        id="W207",
        key="parallelism.pipeline_parallel_layers_per_stage",
        cases=unbalanced,
        message="pipeline stages are unbalanced: stage {stage} works {longer:.0f} % longer than the mean of {stages} "
        "({own} of a step, {usual}{layers})",
        fix="take a parallelism.pipeline_parallel_degree that shares the layers evenly; where stage {stage} has no "
        "more layers than others, look at its ranks: clocks, power, what else runs there",
        ways=(
            Way(told="another parallelism.pipeline_parallel_layers_per_stage", edits=by_layers, least_gain_pct=None),
            Way(told="another parallelism.pipeline_parallel_degree", edits=by_other_depth),
        ),
        why="all stages work at the pace of the slowest, and the others wait for it",
    ),
    Alert(
        id="W208",
        cases=slow_rank,
        message="{who} is slow: its own time is {behind:.0f} % longer than that of {others}{of}",
        fix="look at clocks, power and temperature there (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE), at what "
        "else runs on {host}, and at titan doctor on it",
        why="every collective waits for the last rank: one slow GPU makes all of them slow, and only it does not wait",
    ),
    Alert(
        id="W209",
        cases=slower_than_planned,
        message="a step takes {measured}, {slower:.0f} % longer than planned ({planned}){part}",
        fix="titan doctor --measure finds what this machine sustains, and plans with it; titan validate says what the "
        "plan assumes",
        why="on one node plans of titan's own runs have been off by 5.6 % at most, over nodes published ones by 27 %; "
        "beyond that something is other than assumed",
    ),
    Alert(
        id="W215",
        key="parallelism.data_parallel_replicate_degree",
        cases=exposed("dp_replicate"),
        message="sums over replicas are exposed {share:.0f} % of the step{planned}",
        fix="look at the network between the replicas: cluster.network_gbit_per_s_per_gpu is what was planned with",
        ways=(
            Way(told="fewer replicas of more shards", edits=by_shards),
            Way(told=_LARGER_BATCH, edits=by_larger_batch),
        ),
        why="gradients are summed over replicas once a step, at its end, where little is left to hide it",
    ),
)
