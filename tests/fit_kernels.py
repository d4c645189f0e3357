"""Fit the constants of all kernels to the measured tables beside the project, and write them into
the package: ``make kernels``.

Only shapes that are not held out are fitted.
"""

import sys
from pathlib import Path

from kernel_rows import held_out, kernel_tables, processor

import hosim
from hosim.analysis.costmodel.kernels import CLASSES, CONSTANTS_OF
from hosim.validate.fits import KernelFit, fit_kernel

FILES = ("gemm", "attention", "mla", "moe", "collectives")
FILE = Path(hosim.__file__).parent / "analysis" / "costmodel" / "kernels" / "fitted_constants.py"
MACHINES = ("a100_sxm", "h100_sxm")

HEAD = '''"""Constants of kernels by machine, class, dtype and name, as ``make kernels`` fitted them: not to be
edited.

From the tables of aiconfigurator 0.4.0 (Apache-2.0; TensorRT-LLM 1.0.0 on A100, 1.0.0rc3 on H100;
NCCL 2.27.3), without the third of the shapes that is held out. Before each: the rows fitted, and
the median error on them.
"""

from collections.abc import Mapping

FITTED: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]] = {
'''
TAIL = '''}
"""By machine, as in the tables that they were fitted to."""
'''


def fits(machine: str) -> list[KernelFit]:
    """A fit for each class and dtype of a machine."""
    tables = [table for kind in FILES for table in kernel_tables(kind) if table.machine == machine]
    found = []
    for kernel in CLASSES:
        if kernel not in CONSTANTS_OF:
            for dtype in sorted({table.dtype for table in tables if table.kernel == kernel}):
                seen = [
                    table.part(~held_out(table))
                    for table in tables
                    if (table.kernel, table.dtype) == (kernel, dtype)
                ]
                found.append(fit_kernel(seen, processor(machine, dtype)))
                print(machine, kernel, dtype, found[-1].errors, file=sys.stderr, flush=True)
    return found


def lines_of(machine: str) -> list[str]:
    """The lines with the constants of a machine."""
    lines = [f'    "{machine}": {{']
    listed = fits(machine)
    for kernel in dict.fromkeys(fit.kernel for fit in listed):
        lines.append(f'        "{kernel}": {{')
        for fit in (fit for fit in listed if fit.kernel == kernel):
            lines.append(f"            # {fit.errors.rows:,} rows, {fit.errors.median:.1%}")
            lines.append(f'            "{fit.dtype}": {{')
            lines += [f'                "{name}": {value!r},' for name, value in fit.values.items()]
            lines.append("            },")
        lines.append("        },")
    return [*lines, "    },"]


if __name__ == "__main__":
    lines = [line for machine in MACHINES for line in lines_of(machine)]
    FILE.write_text(HEAD + "\n".join(lines) + "\n" + TAIL)
