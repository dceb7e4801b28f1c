"""A teacher on one node and its student on another: what the teacher says goes from node to node, not through here.

python examples/remote_teacher_student.py
"""

import torch
from torch import nn

from multiworld import remote


def main() -> None:
    torch.manual_seed(0)
    with remote.local(2, num_threads=1) as nodes:
        student = nodes[1].load(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)))
        teacher = nodes[2].load(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8)))
        optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
        losses = []
        with remote.no_sync():  # nothing in this loop waits
            for _ in range(100):
                inputs = nodes[1].randn(64, 32)
                with torch.no_grad():
                    wanted = teacher(inputs.to_node(2)).to_node(1)
                loss = nn.functional.mse_loss(student(inputs), wanted)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss)
        first, last = losses[0].item(), losses[-1].item()
        print(f"the loss went from {first:.4f} to {last:.4f}: the student learned: {last < first / 2}")
        print("bytes of features through the master:", nodes.statistics.fetched_bytes - 8)  # but for the two losses


if __name__ == "__main__":
    main()
