"""Remote tensors are copied, pickled and assigned like others."""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from multiworld.remote.errors import PlaceMismatchError, UnsupportedOperationError
from multiworld.remote.master.node import Node
from multiworld.remote.session.sync_points import no_sync
from multiworld.remote.tensor.remote_tensor import RemoteTensor


@pytest.mark.parametrize(
    ("given", "named"), [("model.pt", "a str"), (torch.ones(2), "a Tensor"), (nn.Linear, "the class Linear")]
)
def test_what_is_no_module_can_not_be_loaded(node: Node, given: Any, named: str) -> None:
    with pytest.raises(TypeError, match=rf"load takes a module, not {named}\. nodes\[1\]\.send"):
        node.load(given)


def test_a_module_comes_back_by_cpu(node: Node) -> None:
    module = node.load(nn.Linear(2, 3)).cpu()
    assert [type(each.data) for each in module.parameters()] == [Tensor, Tensor]
    assert module(torch.ones(1, 2)).shape == (1, 3)


def test_an_address_is_refused_with_the_way_to_save_a_module(node: Node) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"data_ptr\(\): .* module\.cpu\(\), as for save_pretrained"):
        node.ones(2).data_ptr()


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantized_tensor_is_not_sent(node: Node) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"send: the tensor is quantized\. Send tensor\.dequantize"):
        node.send(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


def test_what_pytorch_has_and_can_not_call_is_no_function_of_a_node(node: Node) -> None:
    with pytest.raises(AttributeError, match="a node has no attribute 'float32'"):
        node.float32  # noqa: B018


def test_a_deep_copy_is_on_the_node_with_its_gradient_and_memory_of_its_own(node: Node) -> None:
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    node.load(net)
    with no_sync():
        other = copy.deepcopy(net)
    assert isinstance(other.weight, nn.Parameter)
    assert isinstance(other.weight, RemoteTensor)
    assert isinstance(other.weight.grad, RemoteTensor)
    with torch.no_grad():
        other.weight.zero_()
    assert isinstance(net.weight, RemoteTensor)
    assert net.weight.fetch().any()


def test_a_pickle_and_a_file_have_the_values(node: Node) -> None:
    parameter = node.load(nn.Linear(2, 2)).weight
    assert isinstance(parameter, RemoteTensor)
    again = pickle.loads(pickle.dumps(parameter))
    assert type(again) is nn.Parameter
    assert torch.equal(again, parameter.fetch())
    file = io.BytesIO()
    torch.save({"ones": node.ones(2)}, file)
    file.seek(0)
    loaded = torch.load(file)["ones"]
    assert type(loaded) is torch.Tensor
    assert loaded.tolist() == [1.0, 1.0]


def test_an_argument_of_a_process_that_starts_has_the_values_and_shares_no_memory(node: Node) -> None:
    class Starting:
        def duplicate_for_child(self, descriptor: int) -> int:
            raise AssertionError("memory that is shared with the child")

    set_spawning_popen(cast("Any", Starting()))
    try:
        argument = ForkingPickler.dumps({"parameter": node.load(nn.Linear(2, 2)).weight, "ones": node.ones(3)})
    finally:
        set_spawning_popen(None)
    found = pickle.loads(argument)
    assert type(found["parameter"]) is nn.Parameter
    assert type(found["ones"]) is torch.Tensor
    assert found["ones"].tolist() == [1.0, 1.0, 1.0]


def test_data_that_is_assigned_is_shared_with_its_source(node: Node) -> None:
    tensor, source = node.zeros(2), node.ones(3)
    tensor.data = source
    source.add_(1)
    assert tensor.tolist() == [2.0, 2.0, 2.0]


def test_data_of_the_master_makes_a_parameter_one_of_the_master(node: Node) -> None:
    net = node.load(nn.Linear(2, 2))
    parameter = net.weight
    assert isinstance(parameter, RemoteTensor)
    parameter.data = parameter.fetch()
    assert net.weight is parameter
    assert str(type(parameter)) == str(nn.Parameter)
    assert isinstance(net.bias, RemoteTensor)


def test_a_gradient_goes_back_through_a_copy_to_the_master(node: Node) -> None:
    there = node.ones(2).requires_grad_()
    (there.cpu() * 3).sum().backward()
    assert isinstance(there.grad, RemoteTensor)
    assert there.grad.tolist() == [3.0, 3.0]


def test_a_gradient_comes_home_from_a_node_and_is_added_to_that_of_the_master(node: Node) -> None:
    here = torch.ones(5000, requires_grad=True)
    there = node.zeros(5000)
    there.copy_(here)
    ((there * 3).sum().cpu() + (here * 2).sum()).backward()
    assert type(here.grad) is torch.Tensor
    assert here.grad[0] == 5.0


def test_a_tensor_of_the_master_is_not_written_by_a_node(node: Node) -> None:
    with pytest.raises(PlaceMismatchError, match="the master, and is written"):
        torch.ones(2).add_(node.ones(2))


def test_what_is_no_tensor_or_is_made_of_others_is_not_sent(node: Node) -> None:
    with pytest.raises(TypeError, match=r"send takes a tensor, got int: make one with torch.tensor"):
        node.send(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="send: a TwoTensor is made of other tensors: send each of them"):
        node.send(TwoTensor(torch.ones(2), torch.ones(2)))  # type: ignore[no-untyped-call]
    with pytest.raises(NotImplementedError, match="no data"):
        node.send(torch.ones(2, device="meta"))
