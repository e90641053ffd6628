"""A long record changes the gradients of others if batches are padded to their longest record.

DP-SGD clips each record's gradient. That bounds what one record adds to the sum only if no record
changes the gradient of another. A recurrent network that reads the last position of a sequence
breaks this if a batch is padded to its longest sequence. Padding to a fixed length corrects it.
"""

import torch
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

CLIP = 1.5
LONGEST = 40


class Classifier(nn.Module):
    """An embedding, an LSTM, and a linear layer on the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, 64)
        self.lstm = DPLSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 18)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [n, 18] of tokens [n, length]."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden[:, -1])


def clipped_sum(texts: list[str], labels: list[int], fixed_length: bool) -> Tensor:
    """Sum of the clipped gradients of a batch, flat."""
    torch.manual_seed(0)
    model = GradSampleModule(Classifier())
    sequences = [torch.tensor(list(text.encode())) for text in texts]
    if fixed_length:
        sequences = [nn.functional.pad(s, (0, LONGEST - len(s))) for s in sequences]
    logits = model(pad_sequence(sequences, batch_first=True))
    nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], dim=1)
    return (each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)


def contribution(fixed_length: bool) -> float:
    """How far one long record moves the clipped sum of twenty short ones, in units of C."""
    short, labels = ["Li"] * 20, [0] * 20
    without = clipped_sum(short, labels, fixed_length)
    with_one = clipped_sum(
        [*short, "Wolfeschlegelsteinhausenbergerdorff"], [*labels, 1], fixed_length
    )
    return float((with_one - without).norm()) / CLIP


if __name__ == "__main__":
    print(f"padded to the longest of the batch: {contribution(False):.1f} C")
    print(f"padded to a fixed length:           {contribution(True):.1f} C")
