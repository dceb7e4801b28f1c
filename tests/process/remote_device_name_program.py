"""Uses ``"remote:N"`` wherever PyTorch takes a device; writes a line of JSON for each check: its name and its error."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from multiworld import remote

ONE, TWO = "remote:1", "remote:2"


def is_on(tensor: Any, device: str) -> None:
    assert type(tensor) is remote.RemoteTensor, type(tensor)
    assert tensor.device == torch.device(device), tensor.device


def is_local(tensor: Any) -> None:
    assert not isinstance(tensor, remote.RemoteTensor)
    assert tensor.device.type == "cpu"


def factories() -> None:
    is_on(torch.ones(2, device=ONE), ONE)
    is_on(torch.randn(2, device=torch.device(TWO)), TWO)
    is_on(torch.zeros(2, device=torch.ones(1, device=TWO).device), TWO)
    is_on(torch.zeros_like(torch.ones(2), device=ONE), ONE)
    is_on(torch.zeros_like(torch.ones(2, device=ONE)), ONE)
    is_on(torch.zeros_like(torch.ones(2, device=ONE), device=TWO), TWO)
    is_on(torch.ones(2, device=ONE).new_zeros(2, device=TWO), TWO)


def data() -> None:
    for value in ([1.0, 2.0], 3, [], [[1, 2], [3, 4]], True):
        there: Any = torch.tensor(value, device=ONE)
        is_on(there, ONE)
        assert torch.equal(there.fetch(), torch.tensor(value))
    is_on(torch.as_tensor([1, 2], device=ONE), ONE)
    is_on(torch.asarray([1.0, 2.0], device=ONE), ONE)
    leaf: Any = torch.tensor([1.0, 2.0], device=ONE, requires_grad=True)
    (leaf * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0]


def contexts() -> None:
    with torch.device(ONE):
        is_on(torch.randn(2), ONE)
        is_on(nn.Linear(2, 2).weight, ONE)
        is_on(torch.tensor([1.0]), ONE)
        is_local(torch.ones(1, device="cpu"))
    torch.set_default_device(TWO)
    try:
        is_on(nn.Linear(2, 2).weight, TWO)
    finally:
        torch.set_default_device(None)
    is_local(torch.ones(1))


def conversions() -> None:
    local = torch.ones(2)
    there: Any = local.to(ONE)
    is_on(there, ONE)
    assert there.to(ONE) is there
    assert there.to(there.device) is there
    assert there.to(ONE, copy=True) is not there
    is_on(there.to(TWO), TWO)
    is_on(there.to_node(2), TWO)
    is_local(there.to("cpu"))
    is_local(there.cpu())
    assert there.to(ONE, torch.float64).dtype == torch.float64
    assert there.to("cpu", torch.float64).dtype == local.to(ONE, torch.float64).dtype == torch.float64
    assert there.to(torch.ones(1, dtype=torch.int32, device=TWO)).dtype == torch.int32
    assert there.to("meta").is_meta
    assert f"{there.sum():.1f}" == "2.0"


def places_of_gpus() -> None:
    there: Any = torch.ones(2, device=ONE).cuda()
    assert (there.get_node(), there.get_device(), there.sum().get_device()) == (1, 0, 0)
    assert torch.ones(2, device=ONE).get_device() == -1
    if torch.cuda.is_available():
        return
    with pytest.raises(remote.RemoteOperationError) as caught:
        (there + 1).fetch()
    assert caught.value.node == 1
    assert "places_of_gpus" in caught.value.line


def gradients() -> None:
    local: Any = torch.ones(5000, requires_grad=True)
    ((local.to(ONE) * 3).sum().cpu() + (local * 2).sum()).backward()
    is_local(local.grad)
    assert local.grad[0] == 5.0
    there: Any = torch.ones(2, device=ONE, requires_grad=True)
    ((there.to_node(2) * 3).sum().to(ONE) + (there.cpu() * 2).sum().to(ONE)).backward()
    is_on(there.grad, ONE)
    assert there.grad.tolist() == [5.0, 5.0]


def modules() -> None:
    net = nn.Linear(3, 3)
    loss: Any = net(torch.ones(1, 3)).sum()
    loss.backward()
    parameter: Any = net.weight
    kept = parameter.detach().clone()
    net.to(ONE)
    assert net.weight is parameter
    assert isinstance(parameter, nn.Parameter)
    is_on(parameter, ONE)
    is_on(parameter.grad, ONE)
    net.to(TWO)
    is_on(parameter, TWO)
    net.to("cpu")
    is_local(parameter)
    is_local(parameter.grad)
    assert torch.equal(parameter, kept)
    is_on(nn.Linear(2, 2, device="meta").to_empty(device=ONE).weight, ONE)
    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[0].weight = tied[1].weight
    tied.to(ONE)
    assert tied[0].weight is tied[1].weight


def copies() -> None:
    net: Any = nn.Linear(2, 2).to(ONE)
    other = copy.deepcopy(net)
    is_on(other.weight, ONE)
    assert isinstance(other.weight, nn.Parameter)
    with torch.no_grad():
        other.weight.zero_()
    assert net.weight.fetch().any()
    is_local(pickle.loads(pickle.dumps(torch.ones(2, device=ONE))))
    nn.Linear(2, 2).to(ONE).load_state_dict(nn.Linear(2, 2).state_dict())
    here = nn.Linear(2, 2)
    here.load_state_dict(net.state_dict())
    assert torch.equal(here.weight, net.weight.fetch())


def through_file(saved: object, location: Any) -> Any:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, map_location=location)


def files() -> None:
    whole = torch.arange(4.0)
    saved = {"whole": whole, "part": whole[1:], "turned": torch.arange(6.0).view(2, 3).t(), "ids": torch.arange(3)}
    saved |= {"scalar": torch.tensor(7.0), "none": torch.ones(0), "last": whole[3]}
    found = through_file(saved, ONE)
    for name, tensor in saved.items():
        is_on(found[name], ONE)
        assert torch.equal(found[name].fetch(), tensor), name
    found["part"].add_(1)  # it shares memory with the whole, as in the file
    assert found["whole"].tolist() == [0.0, 2.0, 3.0, 4.0]
    is_on(through_file(nn.Linear(2, 2).state_dict(), {"cpu": TWO})["weight"], TWO)
    is_local(through_file(torch.ones(2, device=ONE), None))
    with pytest.raises(remote.UnsupportedOperationError, match="memory of the master"):
        torch.ones(3, device=ONE).set_(torch.ones(3).untyped_storage(), 0, (3,), (1,))


def resumed() -> None:
    """A training that goes on from a file has the bits of one that was not stopped."""

    def step(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    for fused in (False, True):
        net: Any = nn.Linear(4, 3).to(ONE)
        optimizer = torch.optim.AdamW(net.parameters(), fused=fused)
        batches = [torch.randn(5, 4, device=ONE) for _ in range(4)]
        for batch in batches[:2]:
            step(net, optimizer, batch)
        found = through_file({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, ONE)
        other: Any = nn.Linear(4, 3).to(ONE)
        again = torch.optim.AdamW(other.parameters(), fused=fused)
        other.load_state_dict(found["net"])
        again.load_state_dict(found["optimizer"])
        for batch in batches[2:]:
            step(net, optimizer, batch)
            step(other, again, batch)
        assert torch.equal(net.weight.cpu(), other.weight.cpu()), fused


def seeds() -> None:
    torch.manual_seed(7)
    here = nn.functional.dropout(torch.ones(50))
    torch.manual_seed(7)
    assert torch.equal(nn.functional.dropout(torch.ones(50, device=ONE)).cpu(), here)
    torch.manual_seed(-1)
    first = torch.rand(3)
    torch.manual_seed(-1)
    assert torch.equal(torch.rand(3, device=TWO).cpu(), first)


def assignments() -> None:
    there: Any = torch.zeros(2, device=ONE)
    source = torch.ones(3, device=ONE)
    there.data = source
    assert there.tolist() == [1.0, 1.0, 1.0]
    source.add_(1)
    assert there.tolist() == [2.0, 2.0, 2.0]


def mixtures() -> None:
    there = torch.ones(2, device=ONE)
    for other in (torch.ones(2, device=TWO), torch.ones(9999, 2)):
        with pytest.raises(remote.PlaceMismatchError):
            torch.add(there, other)
    with pytest.raises(remote.PlaceMismatchError):
        torch.ones(2).add_(there)


def unknown_nodes() -> None:
    there = torch.ones(1, device=ONE)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.ones(1, device="remote:7"),
        lambda: torch.ones(1).to("remote:7"),
        lambda: there.to("remote:7"),
        lambda: torch.tensor([1], device="remote:7"),
    ]
    for call in calls:
        with pytest.raises(remote.ConnectError, match="there is no node 7: the nodes are 1, 2"):
            call()
    with pytest.raises(remote.ConnectError, match='"remote" without a number is node 0: write "remote:1"'):
        torch.zeros(1, device="remote")


def same_results(run: Callable[[Callable[[Any], Any]], list[Tensor]]) -> None:
    """Run it here and on node 1, and compare bit by bit."""
    torch.manual_seed(3)
    here = run(lambda what: what)
    torch.manual_seed(3)
    there = run(lambda what: what.to(ONE))
    for one, other in zip(here, there, strict=True):
        is_on(other, ONE)
        assert torch.equal(one.detach(), other.detach().cpu())


def train(model: Callable[[], nn.Module], to: Callable[[Any], Any], **options: Any) -> list[Tensor]:
    net = to(model())
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    inputs = to(torch.randn(5, 4, 6))
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        result = net(inputs)
        loss: Any = (result if isinstance(result, Tensor) else result[0]).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return list(net.parameters())


def training() -> None:
    def attention() -> nn.Module:
        return nn.TransformerEncoderLayer(6, 2, 16, dropout=0.1)

    with remote.no_sync():  # of this thread: what comes back is looked at below
        torch.manual_seed(3)
        train(attention, lambda what: what.to(ONE))
    same_results(lambda to: train(attention, to))
    same_results(lambda to: train(lambda: nn.LSTM(6, 5, num_layers=2, dropout=0.2), to, foreach=True))
    same_results(lambda to: train(lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), to, fused=True))


def replayed() -> None:
    """A step that is captured trains as one that is issued here: dropout, and steps counted on the node."""

    def run(to: Callable[[Any], Any]) -> list[Tensor]:
        net = to(nn.TransformerEncoderLayer(6, 2, 16, dropout=0.1, batch_first=True))
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        batches = [to(torch.randn(3, 4, 6)) for _ in range(50)]
        torch.manual_seed(5)

        def work(inputs: Tensor) -> Tensor:
            loss = net(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            return loss.detach()  # type: ignore[no-any-return]

        losses = [work(batches[0])]
        if not isinstance(batches[0], remote.RemoteTensor):
            return [*losses, *[work(each) for each in batches[1:]], *net.parameters()]
        with remote.capture(batches[1]) as step:
            losses.append(work(batches[1]))
            step.returns(losses[-1])
        return [*losses, *[step(each) for each in batches[2:]], *net.parameters()]

    same_results(run)


def compiled() -> None:
    def run(to: Callable[[Any], Any]) -> list[Tensor]:
        net = to(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        faster: Any = torch.compile(net, backend="eager")
        result = faster(to(torch.randn(3, 4)))
        result.sum().backward()
        return [result, net[1].running_mean, *[each.grad for each in net.parameters()]]

    same_results(run)


def scaled_gradients() -> None:
    def run(to: Callable[[Any], Any]) -> list[Tensor]:
        net = to(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        inputs = to(torch.randn(3, 4))
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(inputs).float().square().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return list(net.parameters())

    same_results(run)
    with pytest.raises(remote.UnsupportedOperationError, match=r'Write torch\.autocast\("cpu"\)'):
        torch.autocast("remote")


def checkpoints() -> None:
    def run(to: Callable[[Any], Any]) -> list[Tensor]:
        net = to(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)))
        inputs = to(torch.randn(3, 4)).requires_grad_()
        torch.manual_seed(5)
        loss: Any = checkpoint(net, inputs, use_reentrant=False).sum()
        loss.backward()
        return [inputs.grad, *[each.grad for each in net.parameters()]]

    same_results(run)


def second_connections() -> None:
    with pytest.raises(remote.ConnectError, match=r"another connection is open.*nodes\.close\(\)"):
        remote.local(1)
    with pytest.raises(remote.ConnectError, match="another connection is open"):
        remote.connect("tcp://127.0.0.1:1")
    assert torch.ones(1, device=TWO).get_node() == 2  # type: ignore[attr-defined]


def without_nodes() -> None:
    backend: Any = vars(torch)["remote"]
    assert not backend.is_available()
    with pytest.raises(remote.ConnectError, match="no open connection"):
        torch.ones(1, device=ONE)
    with remote.local(1):  # another connection takes the name
        assert torch.ones(2, device=ONE).sum().item() == 2


CHECKS: tuple[Callable[[], None], ...] = (
    factories,
    data,
    contexts,
    conversions,
    places_of_gpus,
    gradients,
    modules,
    copies,
    files,
    resumed,
    seeds,
    assignments,
    mixtures,
    unknown_nodes,
    second_connections,
    training,
    replayed,
    compiled,
    scaled_gradients,
    checkpoints,
)


def report(check: Callable[[], None]) -> None:
    try:
        check()
    except BaseException as error:
        print(json.dumps([check.__name__, f"{type(error).__name__}: {error}"]), flush=True)
    else:
        print(json.dumps([check.__name__, ""]), flush=True)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    nodes = remote.local(2)
    try:
        assert torch.ones(1).to("cpu").device == nodes[1].ones(1).device  # no name yet: the label
        remote.use_device_name()
        remote.use_device_name()
        for check in CHECKS:
            report(check)
    finally:
        nodes.close()
    report(without_nodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
