"""``remote.replicate(model, [nodes[1], nodes[2]])``: a replica on each node, trained as one model from one script."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..collectives.collectives import all_reduce_lists
from ..master.node import Node
from ..tensor.modules import load
from ..tensor.moving import Place, moved, send
from ..tensor.remote_tensor import RemoteTensor


def replicate(model: nn.Module, nodes: Iterable[Node]) -> Replicas:
    """Return replicas of a module, which is on the master or on a node, and stays as it is. Raises ValueError."""
    places = list(nodes)
    for node in places:
        if not isinstance(node, Node):
            raise TypeError(f"replicate: expected nodes, as [nodes[1], nodes[2]], got a {type(node).__name__}")
    numbers = [node.number for node in places]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"replicate: expected at least one node, each once, got the nodes {numbers}")
    return Replicas([load(copy.deepcopy(model), node.session()) for node in places], places)


class Replicas(nn.Module):
    """Replicas of one module, one on each node. ``parallel(inputs)`` returns the output of each.

    When ``backward`` has reached all replicas, their gradients are averaged over the nodes, as those of DDP: the loss
    of each replica is the mean over its own part of the batch. Equal gradients and equal optimizer steps keep the
    parameters of all replicas equal, to the last bit. Buffers, as the statistics of a batch norm, are each replica's.
    """

    def __init__(self, replicas: Sequence[nn.Module], nodes: Sequence[Node]) -> None:
        super().__init__()
        self.replicas = nn.ModuleList(replicas)
        self.nodes = tuple(nodes)
        self._names = [name for name, _ in replicas[0].named_parameters()]
        self._parameters_of = [list(replica.parameters()) for replica in replicas]
        self._arrived: dict[int, set[int]] = {}  # by parameter: the replicas that have its gradient
        self._backward = -1  # the one that is followed now
        for place, parameters in enumerate(self._parameters_of):
            for number, parameter in enumerate(parameters):
                if parameter.requires_grad:
                    note = partial(self._accumulated, place, number)
                    parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]

    @property
    def module(self) -> nn.Module:
        """The first replica: for ``state_dict``, for evaluation, and to replicate again after a node was lost."""
        return self.replicas[0]

    def forward(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the output of each replica. A tensor is split among them; a list has one value for each.

        Raises ValueError for a batch that can't be split evenly, RuntimeError if a replica misses its gradients.
        """
        self._check_complete()
        parts = [self.split(each) for each in args]
        named = {name: self.split(value) for name, value in kwargs.items()}
        return [
            replica(*[part[place] for part in parts], **{name: part[place] for name, part in named.items()})
            for place, replica in enumerate(self.replicas)
        ]

    def split(self, value: Any) -> list[Any]:
        """Return a part for each replica, on its node: of a tensor by its first dimension, of a list its elements.

        All else is for each replica.
        """
        count = len(self.nodes)
        if isinstance(value, (list, tuple)):
            if len(value) != count:
                raise ValueError(f"a list of {len(value)} for {count} replicas: one for each is needed")
            return [self._placed(each, node) for each, node in zip(value, self.nodes, strict=True)]
        if not isinstance(value, Tensor):
            return [value] * count
        length = value.shape[0] if value.dim() else 0
        if not length or length % count:
            raise ValueError(
                f"a batch of shape {tuple(value.shape)} for {count} replicas: {length} / {count} is not a whole "
                "number. Give a list with a batch for each, or drop the last batch"
            )
        parts = value.split(length // count)  # type: ignore[no-untyped-call]
        return [self._placed(part, node) for part, node in zip(parts, self.nodes, strict=True)]

    def _placed(self, value: Any, node: Node) -> Any:
        if not isinstance(value, Tensor):
            return value
        session = node.session()
        if not isinstance(value, RemoteTensor):
            return send(RemoteTensor, session, value)
        return value if value._session is session else moved(RemoteTensor, value, Place(session), "replicate")

    # ---- gradients

    def _accumulated(self, place: int, number: int, parameter: Tensor) -> None:
        """A replica has the gradient of one parameter. The end of this backward looks which are complete."""
        self._arrived.setdefault(number, set()).add(place)
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        """Average the gradients that all replicas have."""
        self._backward = -1
        complete = [number for number, places in self._arrived.items() if len(places) == len(self.nodes)]
        for number in complete:
            del self._arrived[number]
        if complete and len(self.nodes) > 1:
            gradients = [[parameters[number].grad for number in complete] for parameters in self._parameters_of]
            all_reduce_lists(gradients, "avg")

    def _check_complete(self) -> None:
        if self._arrived:
            number, places = next(iter(self._arrived.items()))
            self._arrived.clear()
            raise RuntimeError(
                f"{self._names[number]} has a gradient on the replicas {sorted(places)} of {len(self.nodes)}, so it "
                "was not averaged: call backward for the loss of each replica before the next batch"
            )
