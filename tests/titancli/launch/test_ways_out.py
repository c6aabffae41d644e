"""What helps against which error."""

from __future__ import annotations

import pytest

from titancli.launch.ways_out import DEFAULT, way_out
from titancli.monitor.run_state import Failure, Rank

RANK = Rank(rank=3, host="n7", gpu="NVIDIA H200", uuid="GPU-1234")


def told(kind: str, message: str, rank: Rank | None = RANK) -> str:
    return way_out(Failure(rank=3, host="n7", type=kind, message=message), rank)


@pytest.mark.parametrize(
    ("kind", "message", "words"),
    [
        ("StuckRank", "rank 3 on host n7 made no progress for 600 s", "look at GPU-1234 of n7"),
        ("LostRank", "rank 3 on host n7 has been silent for 30 s", "see whether its host is up"),
        ("NonFiniteStep", "step 3: the loss is not finite on rank 3", "lower optimizer.lr"),
        ("OSError", "[Errno 28] No space left on device: 'runs/x'", "make room there"),
        ("OSError", "[Errno 116] Stale file handle", "see to the file system"),
        ("PermissionError", "[Errno 13] Permission denied: 'runs/x'", "make it writable on n7"),
        ("RuntimeError", "The server socket has failed to listen: EADDRINUSE", "end the process that holds the port"),
        ("RendezvousTimeoutError", "", "see that the first node is up"),
        ("DistNetworkError", "The client socket has timed out after 600s", "can be reached from n7"),
        ("AcceleratorError", "CUDA error: device-side assert triggered", "beyond model.shape.vocab_size"),
        ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "take GPU-1234 of n7 out of the run"),
        ("RuntimeError", "CUDA error: GPU has fallen off the bus (Xid 79)", "titan launch --preflight"),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("DistBackendError", "NCCL error: unhandled system error", "NCCL_DEBUG=WARN"),
        ("RuntimeError", "No CUDA GPUs are available", "see what n7 shows"),
        ("ModuleNotFoundError", "No module named 'torchao'", "titan doctor on n7"),
        ("SIGKILL", "the process was killed from outside", "out-of-memory killer in the log of n7"),
        ("SIGBUS", "the process crashed", "df -h /dev/shm"),
        ("SIGSEGV", "the process crashed", "PYTHONFAULTHANDLER=1"),
    ],
)
def test_way_out_fits_the_error(kind: str, message: str, words: str) -> None:
    assert words in told(kind, message)


def test_error_of_nobodys_kind_is_to_be_mended() -> None:
    assert told("ValueError", "boom-17") == DEFAULT


def test_host_and_gpu_that_are_not_known_are_not_made_up() -> None:
    failure = Failure(rank=3, host=None, type="AcceleratorError", message="CUDA error: uncorrectable ECC error")
    assert way_out(failure, None).startswith("take its host out of the run")
