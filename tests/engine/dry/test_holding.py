"""What is held is counted, once, for as long as it is held."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from fresh import fresh
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from engine.dry.holding import Holding

KIB = 256  # float32 elements


@pytest.fixture(params=["fake", "real"])
def holding(request: pytest.FixtureRequest) -> Holding:
    """Within it, of fake tensors or of real ones."""
    with FakeTensorMode() if request.param == "fake" else nullcontext(), Holding() as held:
        yield held


def test_views_of_one_storage_count_once(holding: Holding) -> None:
    whole = torch.empty(4, KIB)
    views = whole.view(2, -1), whole[1:], whole.t()
    assert (len(views), holding.now_bytes) == (3, 4096)


def test_what_nobody_holds_any_more_does_not_count(holding: Holding) -> None:
    kept, dropped = torch.empty(KIB), torch.empty(2 * KIB)
    del dropped
    assert (kept.shape[0], holding.now_bytes, holding.peak.total_bytes) == (KIB, 1024, 3072)


def test_what_autograd_keeps_counts(holding: Holding) -> None:
    weight = torch.ones(KIB, requires_grad=True)
    squared = (weight * weight).exp() * 2
    # The weight, the exponential that its backward needs, and what came out.
    assert (squared.shape[0], holding.now_bytes) == (KIB, 3 * 1024)


def test_resized_storage_counts_as_gathered_with_its_new_size(holding: Holding) -> None:
    weight = torch.empty(KIB)
    weight.untyped_storage().resize_(0)
    assert holding.now_bytes == 0
    weight.untyped_storage().resize_(2048)
    assert holding.peak.kind_bytes == {"gathered": 2048}


def test_peak_says_its_moment_and_what_it_is_made_of(holding: Holding) -> None:
    weight = torch.ones(KIB, requires_grad=True)
    with holding.during("forward", "activations"):
        loss = weight.exp().sum()
        loss.backward()
    assert holding.peak.moment == "backward"
    assert holding.peak.kind_bytes["parameters"] == 1024
    assert set(holding.peaks_bytes) == {"build", "forward", "backward"}
    assert holding.peaks_bytes["backward"] == holding.peak.total_bytes == sum(holding.peak.kind_bytes.values())


def test_wrapper_holds_nothing_itself() -> None:
    with Holding() as held:
        pair = TwoTensor(torch.ones(KIB), torch.ones(KIB))
        assert held.now_bytes == 2048
        both = pair * 2
        assert (both.shape[0], held.now_bytes) == (KIB, 4096)


def peak_of_a_piece() -> int:
    """Most bytes held by a quarter of a DTensor of 4 KiB and by its double."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (4,))
    with FakeTensorMode(), Holding() as held:
        piece = DTensor.from_local(torch.ones(KIB), mesh, [Shard(0)], run_check=False)
        doubled = piece * 2
        assert doubled.shape == (4 * KIB,)
    dist.destroy_process_group()
    return held.peak.total_bytes


def test_a_rank_holds_its_piece_and_not_what_tells_the_shape_of_the_whole() -> None:
    assert fresh(peak_of_a_piece) == 2 * 1024


def test_meta_tensors_hold_nothing() -> None:
    with Holding() as held:
        sizes_only = torch.empty(KIB, device="meta")
        assert (sizes_only.shape[0], held.now_bytes) == (KIB, 0)


def test_storages_resize_as_ever_afterwards() -> None:
    before = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), Holding():
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is before
