"""Times of kernels by family: products, attention, experts, collectives."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.costmodel.kernels.op_families.attention_time import (
        FLASH,
        ContextConstants,
        GenerationConstants,
        LatentConstants,
        context_gradient_us,
        context_us,
        flash_us,
        full_gradient_us,
        full_us,
        generation_us,
        latent_us,
    )
    from hosim.analysis.costmodel.kernels.op_families.collective_time import (
        CollectiveConstants,
        CustomConstants,
        collective_us,
        custom_us,
    )
    from hosim.analysis.costmodel.kernels.op_families.expert_loads import (
        TILES,
        busiest,
        expected_loads,
        share_touched,
    )
    from hosim.analysis.costmodel.kernels.op_families.gemm_time import (
        GemmConstants,
        MoeConstants,
        expert_product_us,
        gemm_us,
        moe_us,
    )
    from hosim.analysis.costmodel.kernels.op_families.processor import Array, Processor, Shapes
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "attention_time": "ContextConstants FLASH GenerationConstants LatentConstants "
            "context_gradient_us context_us flash_us full_gradient_us full_us generation_us "
            "latent_us",
            "collective_time": "CollectiveConstants CustomConstants collective_us custom_us",
            "expert_loads": "TILES busiest expected_loads share_touched",
            "gemm_time": "GemmConstants MoeConstants expert_product_us gemm_us moe_us",
            "processor": "Array Processor Shapes",
        },
    )

__all__ = [
    "FLASH", "TILES", "Array", "CollectiveConstants", "ContextConstants", "CustomConstants",
    "GemmConstants", "GenerationConstants", "LatentConstants", "MoeConstants", "Processor",
    "Shapes", "busiest", "collective_us", "context_gradient_us", "context_us", "custom_us",
    "expected_loads", "expert_product_us", "flash_us", "full_gradient_us", "full_us", "gemm_us",
    "generation_us", "latent_us", "moe_us", "share_touched",
]  # fmt: skip
