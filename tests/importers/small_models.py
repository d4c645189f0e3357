"""Small models of torch without attention; two have an example of what they are called with."""

import torch


class Mlp(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            torch.nn.Linear(64, 256),
            torch.nn.GELU(),
            torch.nn.Linear(256, 256),
            torch.nn.ReLU(),
            torch.nn.Linear(256, 10),
        )


class ConvNet(torch.nn.Module):
    """Convolutions strided, grouped and transposed, a residual, pools and a head."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = torch.nn.Conv2d(16, 32, 1)
        self.up = torch.nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.pool = torch.nn.MaxPool2d(4)
        self.head = torch.nn.Linear(16 * 8 * 8, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.up(torch.relu(self.pointwise(x + self.depthwise(x))))
        return self.head(torch.flatten(self.pool(x), 1))


class Tied(torch.nn.Module):
    """A table of words that is also the head's weight, and a layer between, with a bias."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 16)
        self.mix = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).relu_())


SMALL = {"mlp": (Mlp, (torch.rand(32, 64),)), "conv": (ConvNet, (torch.rand(4, 3, 32, 32),))}


def exported(name: str) -> torch.export.ExportedProgram:
    make, inputs = SMALL[name]
    return torch.export.export(make().eval(), inputs)
