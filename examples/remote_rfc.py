"""The example of the original design of ``torch.distributed``: one master drives tensors on two nodes.

Start it by ``pytorch_exec -n 3 python examples/remote_rfc.py``. Places are known on the master, also of tensors on a
GPU that a node does not have: there an operation fails at the first fetch that needs it.
"""
# ruff: noqa: E402, I001
# mypy: disable-error-code="attr-defined"

import torch
import multiworld.distributed

multiworld.distributed.init_master_worker(backend="tcp")
x = multiworld.distributed.FloatTensor(20, 20).fill_(4)
y = torch.randn(20, 20).dist_send()
z = x + y
# z.get_node(), z.get_device() == 0, -1   (node 0, CPU)
assert (z.get_node(), z.get_device()) == (0, -1)
cuda_x = x.cuda()
# cuda_x.get_node(), cuda_x.get_device() == 0, 0
assert (cuda_x.get_node(), cuda_x.get_device()) == (0, 0)
with multiworld.distributed.node(1):
    a = multiworld.distributed.FloatTensor(10, device=1)
    # a.get_node(), a.get_device() == 1, 1
    assert (a.get_node(), a.get_device()) == (1, 1)
    cuda_y = y.cuda()
    # cuda_y.get_node(), cuda_y.get_device() == 0, 0
    assert (cuda_y.get_node(), cuda_y.get_device()) == (0, 0)
    q = cuda_x + cuda_y
    # q.get_node(), q.get_device() == 0, 0
    assert (q.get_node(), q.get_device()) == (0, 0)

# ---- what the design leaves open: who waits, and what fails where

from multiworld.remote import RemoteOperationError

assert torch.equal(z.dist_recv(), y.dist_recv() + 4)
print("the sum is right")
for name, tensor in {"cuda_x": cuda_x, "cuda_y": cuda_y, "q": q, "a": a}.items():
    try:
        print(f"{name} has the shape {tuple(tensor.dist_recv().shape)}")
    except RemoteOperationError as error:
        print(f"{name}: {error.operation} failed on node {error.node}")
