"""Five small models and eight optimizers: what is trained here and on a node, to compare every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

VOCABULARY: Final = 11


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(-1, 1, 8, 8))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.view(-1, 8, 8))[0][:, -1])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x.view(-1, 8, 8)).mean(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A causal block: ``[batch, 8, 16]`` to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mixed, self.joined = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mixed(self.before(x)).view(-1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        drop = 0.1 if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=drop)
        x = x + self.joined(seen.transpose(1, 2).reshape(-1, 8, 16))
        return x + self.wide(self.between(x))  # type: ignore[no-any-return]


class Language(nn.Module):
    """As GPT: the weights of the embedding are those of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, 16), nn.Parameter(torch.randn(8, 16))
        self.blocks = nn.Sequential(Attention(), Attention())
        self.out = nn.Linear(16, VOCABULARY, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x[:, :8].abs() * 3).long().clamp(max=VOCABULARY - 1)
        return self.out(self.blocks(self.tokens(tokens) + self.positions)).mean(1)[:, :4]  # type: ignore[no-any-return]


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "perceptron with dropout": Perceptron,
    "convolution with batch norm": Convolution,
    "LSTM with dropout": Recurrent,
    "transformer encoder with dropout": Encoder,
    "causal language model": Language,
}
Parameters = Iterable[nn.Parameter]
OPTIMIZERS: Final[dict[str, Callable[[Parameters], Optimizer]]] = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-2),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 1e-2),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, 1e-2),
}
