"""What the installed version of transformers does where versions differ. Imports torch and
transformers.
"""

import inspect
from typing import Any

import torch
import transformers

CACHE = (
    "cache"
    if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    else "past_key_values"
)
"""What ``generate``, models and results call a cache: ``cache`` since 5.24."""


def kept_wide(class_name: str, parameter: str) -> bool:
    """Whether transformers keeps this parameter in fp32 in a model in bf16: the routers of DeepSeek
    since 5.24.

    Builders have them in the dtype of the step, and so do transformers before 5.24 and
    ``model.to(torch.bfloat16)``.
    """
    return any(
        name in parameter
        for name in getattr(transformers, class_name)._keep_in_fp32_modules_strict or ()
    )


def narrowed(model: Any) -> Any:
    """The same model in bf16 with every parameter in it."""
    assert torch.get_default_dtype() == torch.bfloat16
    for name, parameter in list(model.named_parameters()):
        assert (parameter.dtype == torch.float32) == kept_wide(type(model).__name__, name), (
            f"{name} is in {parameter.dtype}"
        )
        if parameter.dtype == torch.float32:
            owner, _, own = name.rpartition(".")
            setattr(
                model.get_submodule(owner),
                own,
                torch.nn.Parameter(parameter.detach().to(torch.bfloat16)),
            )
    return model
