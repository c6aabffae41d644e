"""Every setting of a run, as frozen sections.

Knows names, types, ranges, defaults and what each key does. Does not know where a value came
from (sources.py), whether values go together (rules.py) or what `auto` and -1 become (the Plan).
The text under a field is its documentation everywhere: `keys.field_docs()` hands it to help,
`explain-config` and editors.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

GpuName: TypeAlias = Literal[
    "h100-80", "h100-95", "h100-96", "h200", "a100-40", "a100-80", "b200", "gb200", "mi300x", "cpu", "auto"
]
Dtype: TypeAlias = Literal["float32", "bfloat16"]
ScheduleName: TypeAlias = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "LoopedBFS"
]

DATASETS = ("stdlib", "text", "jsonl", "parquet", "huggingface", "bins")
"""Corpora that titan reads."""

Count: TypeAlias = Annotated[int, Field(ge=1)]
# Far above any model: a slip of the hand is told at once, not planned layer by layer for minutes.
Layers: TypeAlias = Annotated[int, Field(ge=1, le=10_000)]
Whole: TypeAlias = Annotated[int, Field(ge=0)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
# Wider than any hardware, from a core of a small machine to a rack: what is outside is a slip of units or of the hand.
Rate: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6)]
Fraction: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)]


class Section(BaseModel):
    """One table of the file: strict types, no unknown keys, no later change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


class Job(Section):
    """What the run is called and where it is kept."""

    name: str = ""
    """Name of the run and of its folder; empty: `<preset or file>-YYYYMMDD-HHMMSS`, which cannot be resumed."""
    description: str = ""
    """Free text, kept in the run folder."""
    dump_folder: str = "runs"
    """Folder that holds the run folders, relative to where titan is started."""


class Cluster(Section):
    """The hardware that the plan is made for."""

    gpu: GpuName = "auto"
    """Kind of accelerator on every node; `auto` is what this machine has, `cpu` trains with gloo processes."""
    nodes: Count = 1
    """Number of machines."""
    gpus_per_node: Count | Literal["auto"] = "auto"
    """GPUs of one machine, or processes with `cpu`; `auto`: those here, a usual node of the named GPU, one process."""
    network_gbit_per_s_per_gpu: Rate | None = None
    """Network bandwidth between nodes for each GPU, in Gbit/s; left out: that of a usual node of this GPU."""
    memory_gib: Annotated[float, Field(ge=0.001, le=1_000_000.0)] | None = None
    """Memory that a process has on one GPU, in GiB; left out: the card's, with `cpu` a share of this machine's."""
    bf16_tflops: Rate | None = None
    """Dense bfloat16 peak of one GPU, in TFLOP/s; left out: the data sheet's, or what a calibration measured."""
    fp8_tflops: Rate | None = None
    """Dense float8 peak of one GPU, in TFLOP/s; left out: the data sheet's, or what a calibration measured."""
    fp32_tflops: Rate | None = None
    """Float32 peak of one GPU without TF32, in TFLOP/s; left out: the data sheet's, or what a calibration measured."""
    hbm_tbyte_per_s: Rate | None = None
    """Peak rate of one GPU's memory, in TB/s; left out: the data sheet's, or what a calibration measured."""
    nvlink_gbyte_per_s: Rate | None = None
    """What one GPU sends over NVLink at once, one direction, in GB/s; left out: the data sheet's, or measured."""
    pcie_gbyte_per_s: Rate | None = None
    """What one GPU sends over PCIe at once, one direction, in GB/s; left out: the data sheet's."""
    calibration: str = "auto"
    """Rates that `titan doctor --measure` found: `auto` takes its file for this kind of GPU, `none` none, or a path."""


class ShapeOverrides(Section):
    """Single numbers of the model that differ from its flavor."""

    dim: Count | None = None
    """Width of the residual stream."""
    n_layers: Layers | None = None
    """Number of transformer blocks."""
    n_heads: Count | None = None
    """Query heads of a block."""
    n_kv_heads: Count | None = None
    """Key and value heads of a block; must divide the query heads."""
    head_dim: Count | None = None
    """Width of one head; left out: the flavor's, or dim / n_heads where one of these is overridden."""
    ffn_dim: Count | None = None
    """Hidden width of the SwiGLU feed-forward."""
    vocab_size: Count | None = None
    """Rows of the embedding and of the output head."""
    rope_theta: Positive | None = None
    """Base of the rotary position frequencies."""
    tie_embeddings: bool | None = None
    """Use the embedding's weights for the output head too."""


class Model(Section):
    """Which model is trained."""

    name: Literal["llama3", "llama2", "qwen3"] = "llama3"
    """Model family."""
    flavor: str = "debugmodel"
    """Size within the family, such as `8B`; the list is in `engine/shapes.py`."""
    hf_assets_path: str | None = None
    """Folder with `tokenizer.json` of a Hugging Face model; used where `data.tokenizer` is not set."""
    shape: ShapeOverrides = ShapeOverrides()


class Training(Section):
    """What is trained on, how much at a time, and in which precision."""

    dataset: str = "stdlib"
    """Corpus: `stdlib` (Python's own source); files that are `text`, `jsonl`, `parquet`, `bins`; or `huggingface`."""
    dataset_path: str | None = None
    """File or folder of the corpus; for `huggingface` a folder or NAME:CONFIGURATION:SPLIT; left out for `stdlib`."""
    seq_len: Count = 2048
    """Tokens of one training sequence."""
    loss_chunks: Count = 1
    """Pieces of the sequence in which output head and loss are computed; 1 holds the whole logits in memory."""
    on_out_of_memory: Literal["shrink", "fail"] = "fail"
    """Out of memory in the first steps: `shrink` halves the microbatch and doubles the accumulation, `fail` ends."""
    local_batch_size: Count | Literal["auto"] = 1
    """Sequences of one data rank in one accumulation step; `auto`: the planner's choice."""
    global_batch_size: Annotated[int, Field(ge=-1)] = -1
    """Sequences of one optimizer step over all data ranks; -1: local_batch_size x data ranks, without accumulation."""
    steps: Count = 1000
    """Optimizer steps of the whole run."""
    max_norm: NotNegative = 1.0
    """Gradient norm above which gradients are scaled down to it; 0 switches clipping off."""
    mixed_precision_param: Dtype = "bfloat16"
    """Precision of weights and activations in forward and backward, in every layout."""
    mixed_precision_reduce: Dtype = "float32"
    """Precision in which gradients are added up, over ranks and over microbatches."""
    dtype: Dtype = "float32"
    """Precision in which weights and optimizer states are kept, and gradients that FSDP has summed."""


class Parallelism(Section):
    """How the model and the batch are split over ranks: dp_replicate x dp_shard x cp x tp x pp = world size."""

    data_parallel_replicate_degree: int = 1
    """Copies of the (sharded) model; gradients are summed over them. With sharding: HSDP."""
    data_parallel_shard_degree: int = -1
    """Ranks over which FSDP shards weights, gradients and optimizer states; -1: those that the other axes leave."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Free weights a block gathered or copied after use (`always`) or not (`never`); `default`: FSDP without PP."""
    tensor_parallel_degree: int = 1
    """Ranks that split each layer's matrices, with sequence parallel; best inside one node."""
    enable_async_tensor_parallel: bool = False
    """Overlap tensor-parallel communication with the matrix products beside it; needs compile."""
    disable_loss_parallel: bool = False
    """Gather the logits over tensor ranks instead of computing the loss on vocabulary pieces."""
    pipeline_parallel_degree: int = 1
    """Ranks that hold successive groups of layers."""
    pipeline_parallel_schedule: ScheduleName = "1F1B"
    """Order of forward and backward microbatches over pipeline ranks."""
    pipeline_parallel_microbatch_size: Count = 1
    """Sequences of one pipeline microbatch; must divide local_batch_size."""
    pipeline_parallel_layers_per_stage: Count | None = None
    """Layers of one pipeline stage; left out: one stage a rank, or two for the schedules with several."""
    context_parallel_degree: int = 1
    """Ranks that split each sequence, for long contexts."""
    context_parallel_method: Literal["allgather", "ring", "ulysses"] = "allgather"
    """How attention sees the whole sequence: gather K/V, pass K/V around, or exchange heads for tokens."""
    context_parallel_load_balance: Literal["headtail", "none", "auto"] = "auto"
    """`headtail`: an early and a late piece a rank, so that causal work is equal; `auto`: so, except for ulysses."""


class ActivationCheckpoint(Section):
    """Recompute activations in backward instead of keeping them: memory for time."""

    mode: Literal["none", "selective", "full", "memory_budget", "auto"] = "none"
    """Which activations are recomputed; `auto`: the planner's choice."""
    selective_ac_option: Annotated[
        Count | Literal["op"], BeforeValidator(lambda v: int(v) if isinstance(v, str) and v.isdigit() else v)
    ] = "op"
    """With `selective`: `op` keeps the dear operations' results, n recomputes every n-th layer in full."""
    memory_budget: Fraction = 0.5
    """With `memory_budget`: share of the activations that the compiler may keep, 0 to 1."""


class Compile(Section):
    """torch.compile."""

    enable: bool = False
    """Compile each transformer block (and the loss) with TorchInductor."""
    components: Names = ("model", "loss")
    """What is compiled: `model`, `loss`."""


class Float8(Section):
    """Matrix products in float8, through torchao."""

    enable: bool = False
    """Run the linear layers of the blocks in float8; needs Hopper or later, or `emulate`."""
    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = "tensorwise"
    """One scale a tensor, one a row, or one a row with the weight gradient in high precision."""
    enable_fsdp_float8_all_gather: bool = False
    """Gather weights in float8 under FSDP: half the bytes; for `tensorwise`."""
    filter_fqns: Names = ("output",)
    """Linear layers that stay in high precision: parts of their dotted names."""
    emulate: bool = False
    """Compute float8 values in higher precision, for hardware without float8: same numbers, no speed."""


class Mx(Section):
    """Matrix products in MXFP8 (blocks of 32 values with one scale), through torchao."""

    enable: bool = False
    """Run the linear layers of the blocks in MXFP8; needs Blackwell, or `emulate`."""
    recipe_name: Literal["mxfp8_cublas", "mxfp8_emulated"] = "mxfp8_cublas"
    """Kernel that multiplies."""
    filter_fqns: Names = ("output",)
    """Linear layers that stay in high precision: parts of their dotted names."""
    emulate: bool = False
    """Compute MXFP8 values in higher precision, for hardware without it."""


class QuantizeDense(Section):
    """Low precision for dense linear layers."""

    float8: Float8 = Float8()
    mx: Mx = Mx()


class Quantize(Section):
    """Low precision."""

    dense: QuantizeDense = QuantizeDense()


class Optimizer(Section):
    """The optimizer; it decays every parameter by the same weight_decay."""

    name: Literal["AdamW", "Adam", "SGD"] = "AdamW"
    """AdamW decouples weight decay from the gradient, Adam does not, SGD has no state."""
    lr: NotNegative = 8e-4
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of the running mean of gradients (Adam, AdamW)."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of the running mean of squared gradients (Adam, AdamW)."""
    eps: Positive = 1e-8
    """Added to the denominator (Adam, AdamW)."""
    weight_decay: NotNegative = 0.1
    """Weight decay a step, times the learning rate."""
    implementation: Literal["fused", "foreach", "for-loop"] = "fused"
    """Kernel of the update. Only `fused` skips a non-finite step on the device; the others ask the CPU once a step."""


class LRScheduler(Section):
    """Learning rate over steps: linear warmup, stable, decay."""

    warmup_steps: Whole = 0
    """Steps of linear warmup: step k has k / warmup_steps of the peak."""
    decay_ratio: Fraction | None = None
    """Share of all steps, at the end, in which the rate decays; left out: all steps after warmup; 0: none."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """Curve of the decay."""
    min_lr_factor: Fraction = 0.0
    """Share of the peak that the decay would reach one step after the last."""


class Checkpoint(Section):
    """Saving and loading."""

    enable: bool = False
    """Save checkpoints and resume from the newest committed one."""
    folder: str = "checkpoints"
    """Folder of the checkpoints, inside the run folder; or a URL such as `s3://bucket/run`, of this run alone."""
    interval: Count = 500
    """Steps between checkpoints."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Write while training goes on; pinned memory makes the copy from the GPU short."""
    keep_latest_k: Whole = 10
    """Newest checkpoints that are kept; 0 keeps all."""
    load_step: Annotated[int, Field(ge=-1)] = -1
    """Step to load; -1: the newest committed one."""
    initial_load_path: str | None = None
    """Checkpoint (folder or URL of a step, or of several) whose weights alone a run without its own starts from."""
    initial_load_in_hf: bool = False
    """`initial_load_path` holds Hugging Face safetensors."""
    last_save_in_hf: bool = False
    """Write the last checkpoint as Hugging Face safetensors too."""
    export_dtype: Dtype = "float32"
    """Precision of weights exported at the end."""


class Data(Section):
    """Tokens and the order in which they are read."""

    tokenizer: str | None = None
    """`bytes`, or the path of a `tokenizer.json`; left out: that of model.hf_assets_path, else `bytes`."""
    shuffle: bool = True
    """Read the sequences of each epoch in an order drawn from debug.seed and the epoch."""
    repeat: bool = True
    """Start the corpus again when it ends; false: the run ends with the data."""
    num_workers: Whole = 0
    """Processes of each rank that read ahead; 0 reads in the training process."""
    prefetch: Whole = 0
    """Steps read ahead; 0: two for each of num_workers, and without those none."""
    on_bad_line: Literal["error", "skip"] = "error"
    """A line, a row or a text file that cannot be read ends the run before it starts, or is skipped and counted."""
    document_mask: bool = False
    """Keep attention, positions and labels inside each document of a packed sequence."""
    text_field: str = "text"
    """Field of a JSON line, or column of a table, that holds a document's text."""
    prepared_folder: str | None = None
    """Folder for the tokens of large corpora, made once for all runs; left out: `.prepared` of job.dump_folder."""
    streaming: bool = False
    """Train on a huggingface dataset while it arrives, in the order of its stream, shuffled within windows."""
    mixture: dict[str, Positive] = {}
    """Weights of several corpora: path to weight."""


class Slurm(Section):
    """Slurm job options."""

    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account that is charged."""
    time: str | None = None
    """Time limit, such as `12:00:00`."""
    qos: str | None = None
    """Quality of service."""
    extra: Names = ()
    """Further sbatch options, one a string."""


class Kubernetes(Section):
    """Kubernetes job options."""

    kind: Literal["TrainJob", "PyTorchJob", "JobSet"] = "TrainJob"
    """Kind of the object that is written."""
    image: str | None = None
    """Container image with titan in it."""
    namespace: str = "default"
    """Namespace of the job."""
    volumes: Names = ()
    """Claims to mount: `claim:/path`."""


class Launch(Section):
    """How the processes are started."""

    scheduler: Literal["local", "slurm", "kubernetes"] = "local"
    """Start here, or submit to a cluster."""
    max_restarts: Whole = 0
    """Times in all that one launch starts its failed run again, from the newest checkpoint."""
    grace_seconds: NotNegative = 30.0
    """Seconds that workers get to end by themselves after a signal."""
    slurm: Slurm = Slurm()
    kubernetes: Kubernetes = Kubernetes()


class Validation(Section):
    """Loss on held-out text."""

    enable: bool = False
    """Run validation during training."""
    dataset: str | None = None
    """Corpus of the validation; as training.dataset."""
    dataset_path: str | None = None
    """File or folder of the validation corpus."""
    freq: Count = 500
    """Steps between validations."""
    steps: Annotated[int, Field(ge=-1)] = -1
    """Batches of one validation; -1: to the end of the data."""


class Metrics(Section):
    """What is written while training."""

    log_freq: Count = 10
    """Steps between step events; the first and the last step are always written."""
    breakdown_freq: Whole = 50
    """Steps between profiles of one step for its breakdown; fewer where they would cost over 0.5 % of time; 0: none."""
    enable_tensorboard: bool = False
    """Write the events to TensorBoard too, in `tensorboard` of the run folder; needs the package tensorboard."""
    enable_wandb: bool = False
    """Write the events to Weights & Biases too (project WANDB_PROJECT, or titan); needs the package wandb."""
    prometheus_file: str | None = None
    """File for Prometheus' node exporter, anew at each report: rank 0's, or one a rank with `rank` in braces in it."""


class Profiling(Section):
    """The torch profiler."""

    enable_profiling: bool = False
    """Keep a trace of one step every profile_freq steps, of every rank: `profiles/*.json.gz` of the run folder."""
    profile_freq: Count = 100
    """Steps between traces that are kept; the first two steps of a launch have none."""


class Comm(Section):
    """How long ranks may stand still: then the run ends, and names the rank that is stuck or silent."""

    init_timeout_seconds: Count = 300
    """Longest time without progress until the end of the first step; collectives themselves give up 60 s later."""
    train_timeout_seconds: Count = 100
    """Longest time without progress beyond what the step before took; a run suspended for longer may end too."""
    save_timeout_seconds: Count = 1800
    """Longest time without progress in saving or loading a checkpoint."""


class Debug(Section):
    """Randomness."""

    seed: Whole = 0
    """Seed of the initial weights and of the order of the data."""
    deterministic: bool = False
    """Use deterministic kernels only; slower."""


class Config(Section):
    """A whole run. `Config()` is valid: a debug model on what this machine has."""

    job: Job = Job()
    cluster: Cluster = Cluster()
    model: Model = Model()
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    activation_checkpoint: ActivationCheckpoint = ActivationCheckpoint()
    compile: Compile = Compile()
    quantize: Quantize = Quantize()
    optimizer: Optimizer = Optimizer()
    lr_scheduler: LRScheduler = LRScheduler()
    checkpoint: Checkpoint = Checkpoint()
    data: Data = Data()
    launch: Launch = Launch()
    validation: Validation = Validation()
    metrics: Metrics = Metrics()
    profiling: Profiling = Profiling()
    comm: Comm = Comm()
    debug: Debug = Debug()
