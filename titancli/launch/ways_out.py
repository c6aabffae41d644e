"""The way out of a failure, by what its error says.

Knows errors of torch, CUDA, NCCL, the file system and the network by their texts. Does not know which failure is the
cause (monitor/run_state), nor what helps where memory ran out (memory_words).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from titancli.monitor.run_state import Failure, Rank

DEFAULT = "mend what it says"
_TEST = "titan launch --preflight measures every GPU and link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What helps against errors whose `Type: text`, in small letters, a pattern is found in."""

    pattern: re.Pattern[str]
    fix: str


def _way(pattern: str, fix: str) -> Way:
    return Way(pattern=re.compile(pattern), fix=fix)


FULL_DISK = r"no space left on device|disk quota exceeded|errno (28|122)\b"
"""What the text of a failure has where a disk, or the share of a user of it, is full."""

_WAYS = (
    _way(
        r"^stuckrank\b",
        "its stack says where it stands: look at {place}, its links and disks, or raise the time that it "
        "names where it may take longer",
    ),
    _way(
        r"^lostrank\b",
        "see whether its host is up, and can be reached from the others; " + _TEST,
    ),
    _way(
        r"^nonfinitestep\b",
        "lower optimizer.lr, warm up longer (lr_scheduler.warmup_steps), or look at the data of that step",
    ),
    _way(
        FULL_DISK,
        "make room there, or keep fewer checkpoints (checkpoint.keep_latest_k), or set job.dump_folder to another disk",
    ),
    _way(
        r"read-only file system|permission denied",
        "make it writable on {host}, or set job.dump_folder to a folder that is",
    ),
    _way(r"stale file handle|input/output error|errno 5\b", "see to the file system that the path is on, on {host}"),
    _way(
        r"address already in use|eaddrinuse",
        "end the process that holds the port, or give another one in --rdzv-endpoint",
    ),
    _way(
        r"^rendezvous\w*error\b|c10d store|client socket has timed out|name or service not known|failed to connect to",
        "see that the first node is up and its address can be reached from {host}, and that every node was started "
        "with the same --nnodes and --rdzv-endpoint",
    ),
    _way(
        r"device-side assert",
        "an index was out of range on the GPU, such as a token beyond model.shape.vocab_size: launch once with "
        "CUDA_LAUNCH_BLOCKING=1 set, and the traceback shows where",
    ),
    _way(
        r"\becc\b|uncorrectable|fallen off the bus|\bxid\b|nvlink error|hardware stack error|gpu is lost",
        "take {place} out of the run and have it looked at (dmesg | grep -i xid there); " + _TEST,
    ),
    _way(
        r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction was encountered",
        "launch once with CUDA_LAUNCH_BLOCKING=1 set to see where; where it comes back on {place} only, that is "
        "broken: " + _TEST,
    ),
    _way(
        r"duplicate gpu detected|invalid device ordinal|no cuda-capable device|no cuda gpus are available",
        "see what {host} shows (titan doctor there), and CUDA_VISIBLE_DEVICES: each process needs a GPU of its own",
    ),
    _way(
        r"unhandled (cuda|system) error|ncclsystemerror|ncclunhandledcudaerror|ncclinternalerror|nccl error",
        "launch once with NCCL_DEBUG=WARN set, and the log of the rank says what failed; too little /dev/shm and a "
        "wrong NCCL_SOCKET_IFNAME are the usual causes (titan doctor on {host}); " + _TEST,
    ),
    _way(
        r"^(import|modulenotfound)error\b|undefined symbol|glibc\w* not found|cannot open shared object",
        "install the same packages on every node: titan doctor on {host} says what is there",
    ),
    _way(
        r"^sigkill\b",
        "look for the out-of-memory killer in the log of {host} (dmesg | grep -i oom); a smaller "
        "training.local_batch_size takes less",
    ),
    _way(
        r"^sigbus\b",
        "see whether /dev/shm on {host} is full (df -h /dev/shm; a container takes --ipc=host or --shm-size=16g), or a "
        "file that it reads was cut",
    ),
    _way(
        r"^sig(segv|abrt|ill|fpe)\b",
        "a library crashed: the end of its log may say which, and PYTHONFAULTHANDLER=1 adds the stack",
    ),
)


def way_out(failure: Failure, rank: Rank | None) -> str:
    """An instruction for the failure of a rank; `rank` is what is known of it."""
    text = f"{failure.type}: {failure.message}".lower()
    fix = next((way.fix for way in _WAYS if way.pattern.search(text)), DEFAULT)
    return fix.format(host=_host(failure, rank), place=_place(failure, rank))


def _host(failure: Failure, rank: Rank | None) -> str:
    host = failure.host or (rank.host if rank is not None else None)
    return host or "its host"


def _place(failure: Failure, rank: Rank | None) -> str:
    """The GPU that the rank worked on and its host, as far as they are known."""
    host = _host(failure, rank)
    return host if rank is None or rank.uuid is None else f"{rank.uuid} of {host}"
