"""A training of another library's trainer on resilient steps; rank 1 kills itself. Started by the launcher.

training_integration_program.py huggingface|lightning FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from multiworld import training

EPOCHS, STEPS_PER_EPOCH, GLOBAL_BATCH, MICRO_BATCH = 4, 5, 12, 2
KILLED_RANK, KILL_AT = 1, 12  # in the third epoch: the replacement has no step of the first two
LEARNING_RATE, MAX_NORM, SEED = 0.02, 0.5, 3


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


class Rows(Dataset[dict[str, Tensor]]):
    """Sums to be learned; the last rows fill no whole step."""

    def __init__(self) -> None:
        self.inputs = torch.randn(STEPS_PER_EPOCH * GLOBAL_BATCH + 3, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.inputs[index]
        return {"inputs": row, "labels": row.sum(0, keepdim=True)}


def loss_of(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = (net(inputs) - labels).square().mean()
    return loss


class Diary:
    """What this process did, in a file of its own."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"{os.environ['RANK']}-{os.getpid()}"
        self._is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    def write(self, **said: Any) -> None:
        with self._path.open("a") as file:
            print(json.dumps(said), file=file)

    def step_done(self, number: int, epoch: float, loss: float) -> None:
        self.write(step=number, epoch=epoch, loss=loss)
        if self._is_first_life and int(os.environ["RANK"]) == KILLED_RANK and number == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def train_with_huggingface(folder: str, diary: Diary) -> nn.Module:
    from transformers import TrainerCallback

    from multiworld.training.integrations.huggingface import ResilientArguments, ResilientTrainer

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.net, inputs, labels)}

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "loss" in logs:
                diary.step_done(state.global_step, state.epoch, logs["loss"])

    args = ResilientArguments(
        folder,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GLOBAL_BATCH // MICRO_BATCH // 2,  # for each of two replicas
        num_train_epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_grad_norm=MAX_NORM,
        optim="adamw_torch",
        seed=SEED,
        logging_steps=1,
        save_steps=8,
        save_only_model=True,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = Model()
    job = training.join("integration", min_replicas=2)
    ResilientTrainer(model, args, train_dataset=Rows(), callbacks=[Watch()], job=job).train()
    return model.net


def train_with_lightning(folder: str, diary: Diary) -> nn.Module:
    import lightning.pytorch as pl

    from multiworld.training.integrations.lightning import ResilientStrategy

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            loss = loss_of(self.net, **batch)
            self.log("train_loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), LEARNING_RATE, weight_decay=0.0)
            return [optimizer], [{"scheduler": linear(optimizer), "interval": "step"}]

    class Watch(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            epoch = trainer.current_epoch + (batch_idx + 1) / STEPS_PER_EPOCH
            diary.step_done(trainer.global_step, epoch, float(outputs["loss"]))

    job = training.join("integration", min_replicas=2)
    trainer = pl.Trainer(
        strategy=ResilientStrategy(job, global_batch=GLOBAL_BATCH, seed=SEED),
        max_epochs=EPOCHS,
        gradient_clip_val=MAX_NORM,
        callbacks=[Watch()],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(Rows(), batch_size=MICRO_BATCH, shuffle=True))
    return model.net


def linear(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    total = EPOCHS * STEPS_PER_EPOCH
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (total - step) / total)


def main() -> None:
    torch.set_num_threads(1)
    name, folder = sys.argv[1:]
    diary = Diary(folder)
    train = {"huggingface": train_with_huggingface, "lightning": train_with_lightning}[name]
    net = train(str(Path(folder) / "out"), diary)
    diary.write(final=[each.tolist() for each in net.parameters()])


if __name__ == "__main__":
    main()
