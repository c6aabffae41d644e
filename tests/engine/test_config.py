"""The sections and keys that people rely on, and how strictly they are read."""

import pytest
from pydantic import ValidationError

from engine import config as config_module
from engine.config import Config, Section
from engine.keys import field_docs, field_types, value_of

# Written by hand from the list of keys that the outside relies on; not derived from the code.
KEYS = {
    "job": "name description dump_folder",
    "cluster": "gpu nodes gpus_per_node network_gbit_per_s_per_gpu memory_gib bf16_tflops fp8_tflops fp32_tflops"
    " hbm_tbyte_per_s nvlink_gbyte_per_s pcie_gbyte_per_s calibration",
    "model": "name flavor hf_assets_path",
    "model.shape": "dim n_layers n_heads n_kv_heads head_dim ffn_dim vocab_size rope_theta tie_embeddings",
    "training": "dataset dataset_path seq_len loss_chunks on_out_of_memory local_batch_size global_batch_size steps"
    " max_norm mixed_precision_param mixed_precision_reduce dtype",
    "parallelism": "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward"
    " tensor_parallel_degree enable_async_tensor_parallel disable_loss_parallel pipeline_parallel_degree"
    " pipeline_parallel_schedule pipeline_parallel_microbatch_size pipeline_parallel_layers_per_stage"
    " context_parallel_degree context_parallel_method context_parallel_load_balance",
    "activation_checkpoint": "mode selective_ac_option memory_budget",
    "compile": "enable components",
    "quantize.dense.float8": "enable recipe_name enable_fsdp_float8_all_gather filter_fqns emulate",
    "quantize.dense.mx": "enable recipe_name filter_fqns emulate",
    "optimizer": "name lr beta1 beta2 eps weight_decay implementation",
    "lr_scheduler": "warmup_steps decay_ratio decay_type min_lr_factor",
    "checkpoint": "enable folder interval async_mode keep_latest_k load_step initial_load_path initial_load_in_hf"
    " last_save_in_hf export_dtype",
    "data": "tokenizer shuffle num_workers prefetch on_bad_line document_mask mixture",
    "launch": "scheduler max_restarts grace_seconds",
    "launch.slurm": "partition account time qos extra",
    "launch.kubernetes": "kind image namespace volumes",
    "validation": "enable dataset dataset_path freq steps",
    "metrics": "log_freq breakdown_freq enable_tensorboard enable_wandb prometheus_file",
    "profiling": "enable_profiling profile_freq",
    "comm": "init_timeout_seconds train_timeout_seconds",
    "debug": "seed deterministic",
}
CHOICES = {
    "cluster.gpu": "h100-80 h100-95 h100-96 h200 a100-40 a100-80 b200 gb200 mi300x cpu auto",
    "model.name": "llama3 llama2 qwen3",
    "training.on_out_of_memory": "shrink fail",
    "training.local_batch_size": "auto",
    "parallelism.fsdp_reshard_after_forward": "default always never",
    "parallelism.pipeline_parallel_schedule": "GPipe 1F1B Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV"
    " LoopedBFS",
    "parallelism.context_parallel_method": "allgather ring ulysses",
    "parallelism.context_parallel_load_balance": "headtail none auto",
    "activation_checkpoint.mode": "none selective full memory_budget auto",
    "activation_checkpoint.selective_ac_option": "op",
    "quantize.dense.float8.recipe_name": "tensorwise rowwise rowwise_with_gw_hp",
    "optimizer.name": "AdamW Adam SGD",
    "lr_scheduler.decay_type": "linear sqrt cosine",
    "checkpoint.async_mode": "disabled async async_with_pinned_mem",
    "data.on_bad_line": "error skip",
    "launch.scheduler": "local slurm kubernetes",
}
SECTIONS = [value for value in vars(config_module).values() if isinstance(value, type) and issubclass(value, Section)]


@pytest.mark.parametrize("key", [f"{section}.{name}" for section, names in KEYS.items() for name in names.split()])
def test_every_key_of_the_contract_exists(key):
    assert key in field_types()


@pytest.mark.parametrize(("key", "word"), [(key, word) for key, words in CHOICES.items() for word in words.split()])
def test_every_choice_of_the_contract_is_taken(key, word):
    section, _, name = key.rpartition(".")
    tables = {name: word}
    for part in reversed(section.split(".")):
        tables = {part: tables}
    assert value_of(Config.model_validate(tables), key) == word


@pytest.mark.parametrize("key", field_types())
def test_every_key_has_a_text_under_it(key):
    assert len(field_docs().get(key, "")) > 5


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_says_what_it_is(section):
    assert section.__doc__
    assert section.__doc__ != Section.__doc__ or section is Section


@pytest.mark.parametrize("section", [section for section in SECTIONS if section is not Section])
def test_every_section_refuses_an_unknown_key(section):
    with pytest.raises(ValidationError, match="Extra inputs"):
        section.model_validate({"no_such_key": 1})


def test_a_config_cannot_be_changed():
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.training.seq_len = 4


@pytest.mark.parametrize("value", ["8", True, 8.0, None, [8], 0, -1])
def test_a_whole_number_is_taken_from_nothing_else(value):
    with pytest.raises(ValidationError):
        Config.model_validate({"training": {"seq_len": value}})


@pytest.mark.parametrize("value", ["0.1", True, None, float("nan"), float("inf"), -0.1])
def test_a_number_is_taken_from_nothing_else(value):
    with pytest.raises(ValidationError):
        Config.model_validate({"optimizer": {"lr": value}})


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_a_boolean_is_taken_from_nothing_else(value):
    with pytest.raises(ValidationError):
        Config.model_validate({"compile": {"enable": value}})


@pytest.mark.parametrize("value", [8, True, ["8B"], None])
def test_text_is_taken_from_nothing_else(value):
    with pytest.raises(ValidationError):
        Config.model_validate({"model": {"flavor": value}})


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_a_share_lies_between_nothing_and_all(value):
    with pytest.raises(ValidationError):
        Config.model_validate({"activation_checkpoint": {"memory_budget": value}})


def test_a_whole_number_stands_for_a_number():
    assert Config.model_validate({"optimizer": {"lr": 1}}).optimizer.lr == 1.0


@pytest.mark.parametrize(("given", "read"), [("op", "op"), (2, 2), ("2", 2)])
def test_selective_ac_option_is_op_or_every_nth_layer(given, read):
    config = Config.model_validate({"activation_checkpoint": {"selective_ac_option": given}})
    assert config.activation_checkpoint.selective_ac_option == read


@pytest.mark.parametrize("given", ["0", 0, "ops", "²", "-1"])
def test_selective_ac_option_refuses_what_is_neither(given):
    with pytest.raises(ValidationError):
        Config.model_validate({"activation_checkpoint": {"selective_ac_option": given}})


def test_c52_a_config_of_defaults_is_valid():
    assert Config.model_validate(Config().model_dump()) == Config()


@pytest.mark.parametrize("key", [key for key, field in field_types().items() if field.default is None])
def test_a_key_without_a_value_has_none_by_default_so_that_leaving_it_out_keeps_it(key):
    assert value_of(Config(), key) is None
