"""A small GPT, trained on the Python standard library's text, generates over three stages; a replica may be killed.

    tokens ─ first ─┬─ blocks-1 ─┬─ last ─ logits        each replica keeps the keys and values of its sequences
                    └─ blocks-2 ─┘

python examples/serve_gpt.py "def main("
python examples/serve_gpt.py "def main(" --kill               the same text, though states are lost on the way
python examples/serve_gpt.py "class " --temperature 0.5 --steps 1000 --weights gpt.pt
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import multiworld as mw
from multiworld.serving.generation import Alone, Generator
from multiworld.serving.generation.gpt import Gpt, GptConfig

TEXT_BYTES = 4_000_000
WINDOW = 128  # tokens of a training example
LEARNING_RATE = 3e-3
CAPACITY_TOKENS = 16 * 256  # of which a replica keeps the states


def library_text(num_bytes: int) -> Tensor:
    """Return the beginning of the standard library's sources, file by file: ``[num_bytes]`` uint8."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
    return torch.frombuffer(text[:num_bytes], dtype=torch.uint8)


def train(config: GptConfig, *, steps: int, seed: int = 0) -> Gpt:
    """Return a model that has seen ``steps`` batches."""
    torch.manual_seed(seed)
    text, model = library_text(TEXT_BYTES), Gpt(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    began = time.monotonic()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / 20, 1.1 - step / steps)
        begins = torch.randint(len(text) - WINDOW, (16,))
        examples = torch.stack([text[begin : begin + WINDOW + 1] for begin in begins.tolist()]).long()
        logits = model(examples[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), examples[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 0 or step == steps:
            print(f"step {step} of {steps}: {loss.item():.2f} nats per byte, {time.monotonic() - began:.0f} s")
    return model


def trained(config: GptConfig, *, steps: int, weights: Path | None) -> Gpt:
    """Return the model of a file, or train one and write it there."""
    if weights is not None and weights.exists():
        model = Gpt(config)
        model.load_state_dict(torch.load(weights, weights_only=True))
        return model
    model = train(config, steps=steps)
    if weights is not None:
        torch.save(model.state_dict(), weights)
    return model


def pipeline_of(model: Gpt) -> mw.serving.Pipeline:
    first, blocks, last = model.stages((1, 2, 1), capacity_tokens=CAPACITY_TOKENS)
    batch = mw.serving.Batch(max_size=16)
    return mw.serving.Pipeline(
        [
            mw.serving.Stage("first", first, batch=batch),
            mw.serving.Stage("blocks", blocks, replicas=2, batch=batch),
            mw.serving.Stage("last", last, batch=batch),
        ],
        name="gpt",
        policy="sticky",  # each step of a sequence goes where its state is
    )


def kill_one_of_the_middle(served: mw.serving.Deployment, killed: set[str]) -> None:
    """Kill a replica, not one of those that were killed before."""
    for replica in served.replicas:
        if replica["stage"] == "blocks" and replica["open"] and replica["id"] not in killed:
            os.kill(replica["pid"], signal.SIGKILL)
            killed.add(replica["id"])
            print(f"«{replica['id']} killed»", end="", flush=True)
            return


async def write(generator: Generator, arguments: argparse.Namespace, served: mw.serving.Deployment | None) -> bytes:
    """Print a text as it comes, and return it. ``served``: kill replicas of it until a state is lost."""
    text, killed = bytearray(arguments.prompt.encode()), set[str]()
    print(arguments.prompt, end="", flush=True)
    tokens = generator.generate(
        list(text), max_new_tokens=arguments.tokens, temperature=arguments.temperature, seed=arguments.seed
    )
    async for token in tokens:
        text.append(token)
        print(chr(token), end="", flush=True)
        written = len(text) - len(arguments.prompt.encode())
        if served is not None and not generator.num_replays and written % max(1, arguments.tokens // 4) == 0:
            kill_one_of_the_middle(served, killed)
    print()
    return bytes(text)


async def main(arguments: argparse.Namespace) -> None:
    config = GptConfig()
    model = trained(config, steps=arguments.steps, weights=arguments.weights).eval()
    torch.set_num_threads(1)
    async with pipeline_of(model).deploy() as served, Generator(served) as generator:
        began = time.monotonic()
        text = await write(generator, arguments, None)
        print(f"\n{arguments.tokens / (time.monotonic() - began):.0f} tokens a second")
        if arguments.kill:
            again = await write(generator, arguments, served)
            print(f"\nthe same text though states were lost {generator.num_replays} times: {again == text}")
    alone = Generator(Alone(model.stages((1, 2, 1), capacity_tokens=CAPACITY_TOKENS)))
    tokens = alone.generate(
        list(arguments.prompt.encode()),
        max_new_tokens=arguments.tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    same = text == arguments.prompt.encode() + bytes([token async for token in tokens])
    print(f"the same text in one process: {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a small GPT over stages.")
    parser.add_argument("prompt", nargs="?", default="def main(")
    parser.add_argument("--tokens", type=int, default=200, help="bytes to write")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--weights", type=Path, help="a file: read if it is there, else written")
    parser.add_argument("--kill", action="store_true", help="kill a replica in the middle of a second generation")
    asyncio.run(main(parser.parse_args()))
