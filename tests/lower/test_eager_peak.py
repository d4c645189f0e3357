"""The peak of a call without hosim: torch's own tracker on the real run, to the byte."""

from __future__ import annotations

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402

import hosim  # noqa: E402
from hosim.analysis import static_peak  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "policy": "layerwise"}


class Messages(nn.Module):
    """Autograd saves the messages of ``index_add_``, of which backward reads the shape alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, to):
        for layer in self.layers:
            x = torch.relu(x + torch.zeros_like(x).index_add_(0, to, layer(x)[to]))
        return x


class Locals(nn.Module):
    """Locals hold what no op reads again."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x, to):
        wide = self.wide(x)
        active = torch.nn.functional.gelu(wide)
        return self.narrow(active)[to].softmax(-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, x, to):
        return self.layer(x[None])[0][to]


class Ordered(Locals):
    """Eager code looks at positions, and leaves out a mask; code that is traced makes it."""

    def forward(self, x, to):
        positions = torch.arange(len(x), device=x.device)
        is_fake = isinstance(positions, FakeTensor)
        if is_fake or not bool((positions.diff() == 1).all()):
            mask = (positions[:, None] - positions).float().square().square()
            x = x + mask.sum(-1, keepdim=True)
        return super().forward(x, to)


class Looks(Locals):
    def forward(self, x, to):
        is_short = torch.compiler._is_exporting_flag or bool(to.max() < 99)
        return super().forward(x, to) if is_short else x


class Overwritten(Locals):
    """Nobody knows what positions are that are written from an input."""

    def forward(self, x, to):
        shifted = torch.zeros(len(to), dtype=to.dtype)
        shifted.add_(to)
        is_short = torch.compiler._is_exporting_flag or bool((shifted == 0).all())
        return super().forward(x, to) if is_short else x


class Recurrent(nn.Module):
    """Its kernel on the CPU makes a buffer whose size fakes do not know."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(32, 32, batch_first=True)

    def forward(self, x, to):
        return self.layer(x[None])[0][0][to]


INPUTS = {"x": torch.linspace(-1, 1, 64 * 32).reshape(64, 32), "to": torch.arange(300) * 7 % 64}
CASES = [(kind, training) for kind in (Messages, Locals, Attention) for training in (True, False)]


def made(kind, training):
    torch.manual_seed(0)
    model = kind().train(training)
    return model, torch.optim.AdamW(model.parameters(), fused=True)


def square(model, inputs):
    return model(**inputs).square().mean()


def tracked(model, optimizer, training):
    def step():
        square(model, INPUTS).backward()
        optimizer.step()
        optimizer.zero_grad()

    tracker = MemTracker()
    if training:
        step()
        tracker.track_external(model, optimizer, *INPUTS.values())
        with tracker:
            step()
    else:
        tracker.track_external(model, *INPUTS.values())
        with torch.no_grad(), tracker:
            model(**INPUTS)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "training"), one_in(2, CASES) + one_in(1, [(Locals, False), (Ordered, True)])
)
def test_eagers_own_peak(kind, training):
    model, optimizer = made(kind, training)
    step = {"optimizer": optimizer, "loss": square} if training else {}
    is_fused = kind is Attention and not training  # eager runs one kernel where the program has ten
    budget = None if is_fused else "100%"
    with hosim.offload(model, INPUTS, budget=budget, **step, **SMALL) as offloaded:
        peak = offloaded.eager_peak_bytes
        assert is_fused or offloaded.result.budget_bytes == peak
    assert peak == tracked(*made(kind, training), training)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Looks, Overwritten, Recurrent])
def test_a_peak_that_is_not_known(kind):
    model, _ = made(kind, False)
    with hosim.offload(model, INPUTS, budget="100%", **SMALL) as offloaded:
        assert offloaded.eager_peak_bytes is None
        assert offloaded.result.budget_bytes == static_peak(offloaded.program.graph).bytes
