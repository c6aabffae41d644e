"""Tokens, speed and use of the hardware: the one owner of these figures.

Knows what is counted (valid tokens, slots with padding), over which steps a rate is taken and
how MFU is stated. Does not know where the clock or the counts come from; imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Config
from engine.hardware import GPUS
from engine.planner.plan import Plan
from engine.shapes import flops_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Figures of the steps since the last report; seconds are means of one step.

    Rates are None for a window that holds step 1, which compiles, allocates and connects.
    """

    step_s: float
    data_s: float
    tokens_per_s: float | None
    slots_per_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu_pct: float | None


class Meter:
    """Counts steps, and tells their speed whenever it is asked.

    MFU is slots x `flops_per_token` over the peak in bfloat16, whichever precision products
    have; None where no peak is known (cpu) or products are in float32.
    """

    def __init__(self, config: Config, plan: Plan, *, now_s: float) -> None:
        gpu = GPUS.get(plan.gpu)
        self._peak_flops_per_s = gpu.bf16_flops_per_s if gpu is not None else None
        if config.training.mixed_precision_param == "float32":
            self._peak_flops_per_s = None
        self._flops_per_token = flops_per_token(plan.model, config.training.seq_len)
        self._world_size = plan.world_size
        self._total_steps = 0
        self._open(now_s)

    def _open(self, now_s: float) -> None:
        self._since_s = now_s
        self._steps = self._tokens = self._slots = 0
        self._data_s = 0.0

    def add(self, *, tokens: int, slots: int, data_s: float) -> None:
        """One optimizer step of the whole world: valid tokens, slots with padding, this rank's wait for data."""
        self._total_steps += 1
        self._steps += 1
        self._tokens += tokens
        self._slots += slots
        self._data_s += data_s

    def leave_out(self, seconds: float) -> None:
        """Time that is no training's: the steps around it are as fast as they were."""
        self._since_s += seconds

    def report(self, now_s: float) -> Speed:
        """The speed of the steps since the last report; the last of them was over at `now_s`."""
        assert self._steps, "no step to report on"
        elapsed_s, steps = now_s - self._since_s, self._steps
        known = elapsed_s > 0 and self._total_steps > steps
        tokens_per_s = self._tokens / elapsed_s if known else None
        slots_per_s = self._slots / elapsed_s if known else None
        speed = Speed(
            step_s=elapsed_s / steps,
            data_s=self._data_s / steps,
            tokens_per_s=tokens_per_s,
            slots_per_s=slots_per_s,
            tokens_per_s_per_gpu=None if tokens_per_s is None else tokens_per_s / self._world_size,
            mfu_pct=self._mfu_pct(slots_per_s),
        )
        self._open(now_s)
        return speed

    def _mfu_pct(self, slots_per_s: float | None) -> float | None:
        if slots_per_s is None or self._peak_flops_per_s is None:
            return None
        return 100.0 * slots_per_s / self._world_size * self._flops_per_token / self._peak_flops_per_s
