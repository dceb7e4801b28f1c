"""Batches are sent to a node on one stream while it computes on another one: the next is there when it is needed.

``python examples/remote_streams.py`` starts a node on this host. A tensor that one stream makes can be used on any
other: what needs it waits until it is made. A buffer that is written again and again needs events, as on a GPU.
"""

from __future__ import annotations

import torch

from multiworld import remote

NUM_BATCHES, BATCH, FEATURES = 12, 2048, 512


def main() -> None:
    batches = [torch.randn(BATCH, FEATURES) for _ in range(NUM_BATCHES)]
    with remote.local(1) as nodes:
        node = nodes[1]
        weight, total = node.randn(FEATURES, FEATURES), node.zeros(FEATURES)
        buffers = [node.empty(BATCH, FEATURES) for _ in range(2)]
        filled, used = [remote.Event(), remote.Event()], [remote.Event(), remote.Event()]
        copying, computing = node.stream(), node.stream()
        for stream in (copying, computing):
            stream.wait_stream(node.default_stream)  # where the tensors above are made
        for number, batch in enumerate(batches):
            place = number % 2
            with copying:
                copying.wait_event(used[place])  # never recorded for the first two: then it waits for nothing
                buffers[place].copy_(node.send(batch, non_blocking=True))
                filled[place].record(copying)
            with computing:
                computing.wait_event(filled[place])
                total += (buffers[place] @ weight).relu().mean(0)
                used[place].record(computing)
        print("issued all; the node is done:", computing.query())
        computing.synchronize()
        with computing:
            there, there_weight = total.cpu(), weight.cpu()
    here = torch.zeros(FEATURES)
    for batch in batches:
        here += (batch @ there_weight).relu().mean(0)
    print("as computed here:", torch.allclose(here, there, rtol=1e-4, atol=1e-4))


if __name__ == "__main__":
    main()
