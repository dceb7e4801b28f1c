"""A real model in three stages, the middle one in two replicas: one of them is killed under load, and nothing is lost.

            ┌─ b ─┐
    here ─ a       c ─ here        one process each, one world of two per edge
            └─ b ─┘

This is what ``multiworld demo`` does, without its plan of faults, its measurements and its display.
"""

from __future__ import annotations

import asyncio
import os
import signal

import torch

import multiworld as mw
from multiworld.demo.model import build_model, predict, stage_of, train
from multiworld.demo.trained import load_digits, micro_batches

NUM_CLIENTS, KILL_AFTER = 8, 200  # answers


async def main() -> None:
    """Train, deploy, ask, kill a replica on the way, and compare every answer with the model in one process."""
    torch.set_num_threads(1)
    digits = load_digits(seed=0)
    model = build_model(seed=0)
    train(model, digits.train_images, digits.train_labels, seed=0, num_epochs=3)
    batches = micro_batches(digits.held_out_images, 16)
    expected = predict(model, batches)
    pipeline = mw.serving.Pipeline(
        [mw.serving.Stage(name, stage_of(model, name), replicas=2 if name == "b" else 1) for name in "abc"],
        name="digits",
    )
    num_answers = 0

    async with pipeline.deploy() as served:
        first = {replica["id"] for replica in served.replicas}

        def is_replaced() -> bool:
            return any(replica["id"] not in first and replica["open"] for replica in served.replicas)

        async def ask() -> None:
            nonlocal num_answers
            while not is_replaced():
                number = num_answers % len(batches)
                assert torch.equal(await served.infer(batches[number]), expected[number])  # type: ignore[arg-type]
                num_answers += 1
                if num_answers == KILL_AFTER:
                    victim = next(replica for replica in served.replicas if replica["stage"] == "b")
                    os.kill(victim["pid"], signal.SIGKILL)

        await asyncio.gather(*(ask() for _ in range(NUM_CLIENTS)))
        assert served.status()["requests"]["answered"] == num_answers
        now = {replica["id"] for replica in served.replicas}
    print(f"{num_answers} micro-batches sent, each answered once, all equal to the model in one process")
    print(f"{', '.join(first - now)} was killed, {', '.join(now - first)} took its place")


if __name__ == "__main__":
    asyncio.run(main())
