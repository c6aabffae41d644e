"""Weights that no other data rank shares: computed with as they are, without FSDP.

Knows the copy of a weight in the precision of products, which its module holds and computes with while the weight
itself, the master, keeps the precision that it is updated in; and where gradients are added up: over microbatches, and
over tensor ranks those of weights that each of them holds whole. Does not know the optimizer. FSDP on a mesh of one
rank does the same through buffers: gradients and weights are copied into them and out again, a tenth of a step.
torch's private `_unsafe_preserve_version_counter` stands here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.tensor import DTensor


class Whole:
    """The masters of a rank's weights by name, the copies that its modules compute with, and their gradients.

    A copy is a plain tensor of what this rank holds. Where masters have the precision of products it is
    the master's own memory.
    """

    def __init__(
        self,
        masters: Mapping[str, nn.Parameter],
        copies: Mapping[str, nn.Parameter],
        *,
        sums: torch.dtype,
        accumulates: bool,
    ) -> None:
        self.masters, self.copies = dict(masters), dict(copies)
        self.sums, self.accumulates = sums, accumulates
        self._fleeting: set[str] = set()
        self._summed: dict[str, Tensor] = {}
        self._over_ranks = False
        for name, copy in self.copies.items() if accumulates else ():
            copy.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        return lambda _: self._add(name)

    @torch.no_grad()
    def refresh(self) -> None:
        """Makes copies what masters have become; whoever changes weights and not their copies calls it."""
        apart = [name for name in self.copies if self.follows(name)]
        if apart:
            held = [_local(self.masters[name]) for name in apart]
            torch._foreach_copy_([self.copies[name] for name in apart], held)

    def has_own(self, name: str) -> bool:
        """Whether a weight's copy is in memory of its own."""
        return self.copies[name].dtype is not self.masters[name].dtype

    def follows(self, name: str) -> bool:
        """Whether a copy has to be written when its weight changes; one that is made for each use has not."""
        return self.has_own(name) and name not in self._fleeting

    def free_between_uses(self, module: nn.Module, *, in_backward: bool) -> None:
        """Keeps copies of a module's weights only while it computes: each use makes them anew from their masters.

        `in_backward` says that gradients need the weights too, as all but a table's do.
        """
        names = {id(copy): name for name, copy in self.copies.items() if self.has_own(name)}
        pairs = [(copy, names[id(copy)]) for copy in module.parameters() if id(copy) in names]
        self._fleeting |= {name for _, name in pairs}
        held = Fleeting([copy for copy, _ in pairs], [_local(self.masters[name]) for _, name in pairs])
        held.drop()
        module.register_forward_pre_hook(lambda _, inputs: held.before_forward(inputs, in_backward=in_backward))
        module.register_forward_hook(lambda _, __, out: held.after_forward(out, in_backward=in_backward))

    def collect(self) -> None:
        """After a backward that torch's hooks do not see: adds what it left behind to the sums."""
        for name in self.copies if self.accumulates else ():
            self._add(name)

    def gradients(self) -> list[Tensor]:
        """The gradient of every weight, placed as its master is; one backward leaves it in the precision of products.

        Raises AssertionError where a weight has none.
        """
        self._sum_over_tensor_ranks()
        return [_as(master, self._gradient(name)) for name, master in self.masters.items()]

    def zero_grad(self) -> None:
        """Drops all gradients."""
        self._summed.clear()
        self._over_ranks = False
        for copy in self.copies.values():
            copy.grad = None

    def _gradient(self, name: str) -> Tensor:
        gradient = self._summed.get(name, self.copies[name].grad)
        assert gradient is not None, f"{name} has no gradient"
        return gradient

    @torch.no_grad()
    def _add(self, name: str) -> None:
        """Adds a gradient in the precision of sums: in bfloat16 many microbatches would lose what each brings."""
        copy = self.copies[name]
        if copy.grad is None:
            return
        if name in self._summed:
            self._summed[name].add_(copy.grad)
        else:
            self._summed[name] = copy.grad.to(self.sums)
        copy.grad = None

    @torch.no_grad()
    def _sum_over_tensor_ranks(self) -> None:
        """Of a weight that every tensor rank holds whole each has the gradient of its own tokens or heads."""
        if self._over_ranks:
            return
        self._over_ranks = True
        by_group: dict[dist.ProcessGroup, list[str]] = {}
        for name, master in self.masters.items():
            if isinstance(master, DTensor) and master.placements[0].is_replicate() and master.device_mesh.size() > 1:
                by_group.setdefault(master.device_mesh.get_group(), []).append(name)
        for group, names in by_group.items():
            terms = [self._gradient(name).to(self.sums).flatten() for name in names]
            total = torch.cat(terms)
            dist.all_reduce(total, group=group)
            for name, piece in zip(names, torch.split(total, [term.numel() for term in terms]), strict=True):
                self._summed[name] = piece.view_as(self.copies[name])


class Fleeting:
    """Copies of a module's weights whose memory is there while it computes, forward or backward."""

    def __init__(self, copies: Sequence[Tensor], masters: Sequence[Tensor]) -> None:
        self.copies, self.masters = tuple(copies), tuple(masters)
        self.storages = [copy.untyped_storage() for copy in copies]
        self.sizes_bytes = [storage.size() for storage in self.storages]

    @torch.no_grad()
    def make(self) -> None:
        """Allocates and fills them."""
        for storage, size in zip(self.storages, self.sizes_bytes, strict=True):
            storage.resize_(size)
        # What backward kept of them is still true: the values are those of forward.
        with _unsafe_preserve_version_counter(self.copies):
            torch._foreach_copy_(self.copies, self.masters)

    def drop(self) -> None:
        """Gives their memory back; work that is queued on it is done first, as all of it is on one stream."""
        for storage in self.storages:
            storage.resize_(0)

    def before_forward(self, inputs: tuple[Any, ...], *, in_backward: bool) -> None:
        """Before the module computes; once the gradient of its input is there, it has been used in backward."""
        self.make()
        x = inputs[0]
        if in_backward and torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            x.register_hook(lambda _: self.drop())  # type: ignore[no-untyped-call]

    def after_forward(self, out: Tensor, *, in_backward: bool) -> None:
        """After the module has computed; once the gradient of its output is there, backward comes."""
        self.drop()
        if in_backward and out.requires_grad:
            out.register_hook(lambda _: self.make())  # type: ignore[no-untyped-call]


def hold_whole(parts: Iterable[nn.Module], *, products: torch.dtype, sums: torch.dtype, accumulates: bool) -> Whole:
    """Puts copies in the precision of `products` where the parts have their weights, and keeps those as masters.

    Gradients are added up in the precision `sums`; `accumulates` says that a step has several backwards. Parts are
    filled: the copies are those of the values that are there. A weight that stands at two places stays one.
    """
    masters: dict[str, nn.Parameter] = {}
    copies: dict[str, nn.Parameter] = {}
    for part in parts:
        names = {id(weight): name for name, weight in part.named_parameters()}
        masters |= dict(part.named_parameters())
        for module in part.modules():
            for leaf, weight in list(module.named_parameters(recurse=False)):
                name = names[id(weight)]
                if name not in copies:
                    copies[name] = nn.Parameter(_local(weight).detach().to(products))
                module.register_parameter(leaf, copies[name])
    return Whole(masters, copies, sums=sums, accumulates=accumulates)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _as(master: Tensor, local: Tensor) -> Tensor:
    """A gradient as its master is placed."""
    if not isinstance(master, DTensor):
        return local
    return DTensor.from_local(
        local, master.device_mesh, master.placements, run_check=False, shape=master.shape, stride=master.stride()
    )
