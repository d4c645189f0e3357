"""Training steps of the ten families, one layer each, and what eager torch makes of the same
step.
"""

from dataclasses import dataclass
from functools import cache

import torch
import transformers
from exported_models import MODELS

from hosim.on_torch.lower import capture_training

ONE_LAYER = {"num_hidden_layers": 1, "n_layer": 1, "num_layers": 1, "first_k_dense_replace": 0}
TOKENS = (2, 24)
MASKED = ("llama", "qwen3", "mistral", "gemma", "mixtral", "deepseek_v3")
"""Those that without a mask look at the contents of others and choose a kernel by it: traced, their
code does without.
"""
IN_BF16 = ("mixtral", "deepseek_v3")
"""torch traces products by groups in bf16 alone."""


def inputs_of(name):
    if name == "vit":
        return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 48 * 48).reshape(2, 3, 48, 48)}
    ids = torch.arange(48).reshape(TOKENS) * 7 % 117 + 3
    if name == "t5":
        return {"input_ids": ids, "decoder_input_ids": ids[:, :16].clone()}
    if name in MASKED:
        mask = torch.ones(24, 24, dtype=torch.bool).tril()
        return {"input_ids": ids, "attention_mask": mask.expand(2, 1, 24, 24).contiguous()}
    return {"input_ids": ids}


def model_of(name):
    class_name, config = MODELS[name]
    cls = getattr(transformers, class_name)
    made = cls.config_class(**{key: ONE_LAYER.get(key, value) for key, value in config.items()})
    made.use_cache = False
    torch.manual_seed(0)
    model = cls(made).train()
    return model.bfloat16() if name in IN_BF16 else model


def loss_of(model, inputs):
    """Something that depends on all that a model gives; the labels' loss differs from family to
    family.
    """
    result = model(**inputs)
    scores = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return scores.float().square().mean()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def state_of(model, optimizer):
    """Everything that a step changes, in a fixed order."""
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return [*model.parameters(), *model.buffers(), *states]


@dataclass
class Case:
    """``live`` is what the captured step changes; ``start`` and ``end`` are what it holds before
    the step, and after eager torch's.
    """

    step: object
    start: list
    live: list
    loss: torch.Tensor
    end: list

    def values(self, name):
        """What the placeholders take, everything being as at the start of the step."""
        with torch.no_grad():
            for tensor, before in zip(self.live, self.start, strict=True):
                tensor.copy_(before)
        torch.manual_seed(1)
        user = iter(inputs_of(name).values())
        return [next(user) if value is None else value for value in self.step.values]


@cache
def case(name):
    """The captured step, and the loss and state after it of eager torch, dropout and all."""
    eager, model = model_of(name), model_of(name)
    optimizer, ours = optimizer_of(eager), optimizer_of(model)
    step = capture_training(model, inputs_of(name), ours, name=name, loss=loss_of)
    torch.manual_seed(1)
    loss = loss_of(eager, inputs_of(name))
    loss.backward()
    optimizer.step()
    live = state_of(model, ours)
    for mine, theirs in zip(
        model.parameters(), eager.parameters(), strict=True
    ):  # eager torch makes no state for what has no gradient
        optimizer.state[theirs] = optimizer.state[theirs] or {
            key: torch.zeros_like(value) for key, value in ours.state[mine].items()
        }
    return Case(
        step,
        [t.detach().clone() for t in live],
        live,
        loss.detach(),
        [t.detach() for t in state_of(eager, optimizer)],
    )
