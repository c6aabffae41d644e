"""What a worker says of itself on a machine without a GPU."""

from __future__ import annotations

import platform

import torch

from engine.report import gpu_of, memory_fields, versions

CPU = torch.device("cpu")


def test_only_the_host_memory_is_known_on_a_cpu() -> None:
    fields = memory_fields(CPU)
    assert {name for name, value in fields.items() if value is not None} == {"host_rss_bytes"}
    assert len(fields) == 7


def test_a_cpu_has_no_gpu() -> None:
    assert gpu_of(CPU) is None


def test_versions_name_what_numbers_depend_on() -> None:
    found = versions(CPU)
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert "nccl" not in found
