"""``hosim.offload_callback`` in the loops of transformers and accelerate themselves: bits are those
of the loop without it, and peaks those that were predicted.
"""

import contextlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from exported_models import MODELS  # noqa: E402
from lowering import MACHINE, same  # noqa: E402
from occupancy import Occupancy  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def made():
    class_name, config = MODELS["gpt2"]
    cls = getattr(transformers, class_name)
    torch.manual_seed(0)
    return cls(cls.config_class(**{**config, "n_layer": 1}))


def rows(count=16):
    tokens = torch.arange(count * 24).reshape(count, 24) * 7 % 117 + 3
    return [{"input_ids": row, "labels": row} for row in tokens]


class Watched(hosim.offload_callback(hardware=MACHINE).__class__):
    """Notes the most bytes of device memory in any part that runs."""

    seen = 0

    def _capture(self, inputs):
        super()._capture(inputs)
        held = [*self.step._captured.held.values()]
        run = self.step._run

        def watched(part, given):
            with Occupancy([*held, given]) as occupancy:
                results = run(part, given)
            self.seen = max(self.seen, occupancy.peak)
            return results

        self.step._run = watched


def callback():
    return Watched({
        "hardware": MACHINE, "budget": "75%", "device": CpuDevice(MACHINE, synchronous=True),
        "parameters": {"effort": 0.0},
    })  # fmt: skip


def trained(folder, callbacks, **settings):
    model = made()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, seed=3,
            per_device_train_batch_size=2, learning_rate=1e-2, optim="adamw_torch_fused",
            logging_steps=1, **settings,
        ),
        train_dataset=rows(),
        eval_dataset=rows(4),
        callbacks=callbacks,
    )  # fmt: skip
    trainer.train()
    logged = [{k: v for k, v in row.items() if "loss" in k or "norm" in k or "rate" in k}
              for row in trainer.state.log_history]  # fmt: skip
    return model.state_dict(), trainer.optimizer.state_dict()["state"], logged


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"max_steps": 3}, marks=pytest.mark.long),
        {"max_steps": 4, "gradient_accumulation_steps": 2, "save_steps": 2, "eval_steps": 3,
         "eval_strategy": "steps"},
    ],
)  # fmt: skip
def test_a_trainer(tmp_path, settings):
    wanted = trained(tmp_path / "a", [], **settings)
    mine = callback()
    got = trained(tmp_path / "b", [mine], **settings)
    assert same(got[:2], wanted[:2])
    assert got[2] == wanted[2]
    assert mine.step is None
    assert mine.seen == mine.predicted_peak_bytes > 0


def looped(run, accelerator, rounds):
    """A loop of accelerate, with a schedule and clipping."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer.optimizer, total_iters=4)
    losses = []
    torch.manual_seed(1)
    with run(model, optimizer):
        for row in rows(2 * rounds):
            batch = {key: value[None].clone() for key, value in row.items()}
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        with torch.no_grad():
            losses.append(model(**batch).loss)
    return losses, model.state_dict(), list(optimizer.optimizer.state.values())


def test_a_loop_of_accelerate():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    mine = callback()
    wanted = looped(lambda *_: contextlib.nullcontext(), accelerator, 3)
    assert same(looped(mine.attached, accelerator, 3), wanted)
    assert mine.seen == mine.predicted_peak_bytes > 0


def test_what_a_loop_must_not_do():
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = {key: value[None] for key, value in rows(1)[0].items()}
    mine = hosim.offload_callback(hardware=MACHINE, parameters={"effort": 0.0})
    with mine.attached(model, optimizer):
        with pytest.raises(InputError, match="attached to a loop already"):
            mine.attached(model, optimizer).__enter__()
        outputs = model(**batch)
        with pytest.raises(InputError, match="asks for 'logits'"):
            outputs.logits.argmax()
        with pytest.raises(InputError, match=r"scales the loss by 0\.5"):
            (outputs["loss"] * 0.5).backward()
        with pytest.raises(InputError, match="by name"):
            model(batch["input_ids"])
    before = [p.detach().clone() for p in model.parameters()]
    assert torch.isfinite(model(**batch).loss)
    assert same(before, list(model.parameters()))


@pytest.mark.parametrize(
    ("options", "match"),
    [({"polcy": "layerwise"}, "unknown option 'polcy'; did you mean 'policy'"),
     ({"check_every": 0}, "check_every: expected a whole number of at least 1")],
)  # fmt: skip
def test_options_are_checked_before_the_first_batch(options, match):
    with pytest.raises(InputError, match=match):
        hosim.offload_callback(hardware=MACHINE, **options)
