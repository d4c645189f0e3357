"""Compiles the event loop and the planner's kernels at installation. Without a compiler the wheel is
pure, and both run interpreted.
"""

import ast
import os
import re
import sys
import sysconfig
import tempfile
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXTENSIONS = {
    "hosim/engine/compiled_loop": "loop*.py",
    "hosim/planner/hyperoffload/compiled_search": "kernels/[!_]*.py",
}
"""By module, beside which lies its ``.pxd``, the files that become it; a later one may use an earlier
one's classes.
"""
TYPES = {
    "Int": "readonly int",
    "Flags": "unsigned char[::1]",
    "Ints": "int[::1]",
    "Longs": "long long[::1]",
}
DIRECTIVES = {
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "binding": False,
    "annotation_typing": False,
    "infer_types": True,
}


class CompiledLoop(BuildHookInterface):
    """``HOSIM_COMPILE``: ``never`` skips it, ``required`` fails where it cannot be done,
    ``checked`` is that with checks of bounds.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is made, also an editable one."""
        wish = os.environ.get("HOSIM_COMPILE", "")
        if wish == "never":
            return
        try:
            built = compile_loops(Path(self.root), checked=wish == "checked")
        except BaseException as error:  # a missing compiler ends in SystemExit or CompileError
            if wish or isinstance(error, KeyboardInterrupt):
                raise
            print(
                f"hosim: no compiled loop ({type(error).__name__}); simulations will run "
                "interpreted",
                file=sys.stderr,
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"] += [
            "/" + module.relative_to(self.root).as_posix() for module in built
        ]  # an editable installation imports them from there


def compile_loops(root: Path, checked: bool = False) -> list[Path]:
    """Compile the files of each extension as one module beside its ``.pxd``; it knows the hash of
    what it was made from.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    directives = DIRECTIVES | {"language_level": 3, "boundscheck": checked}
    flags = ["/O2"] if sys.platform == "win32" else ["-O1", "-g0"]
    with tempfile.TemporaryDirectory() as scratch:
        before = Path.cwd()
        known = ""
        for module, pattern in EXTENSIONS.items():
            known = _lay_out(root, module, pattern, Path(scratch), known)
        os.chdir(scratch)
        try:
            extensions = [
                Extension(module.replace("/", "."), [f"{module}.py"], extra_compile_args=flags)
                for module in EXTENSIONS
            ]
            modules = cythonize(extensions, compiler_directives=directives, quiet=True)
            command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
            command.build_temp, command.build_lib = scratch, str(root)
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
    return [root / (module + sysconfig.get_config_var("EXT_SUFFIX")) for module in EXTENSIONS]


def _lay_out(root: Path, module: str, pattern: str, scratch: Path, below: str) -> str:
    """Write the source of an extension and its types into the package that it belongs to; return
    the hash of what it is made from. ``below`` is that of the extension before, whose classes it
    uses.
    """
    types, stub = root / f"{module}.pxd", root / f"{module}.py"
    folder = types.parent
    files = sorted(folder.glob(pattern))
    read = b"".join([file.read_bytes() for file in (*files, types)])
    known = sha256(read + below.encode()).hexdigest()
    source, declared = "", types.read_text()
    names = [name for file in files for name in _constants(file)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{pattern}: {', '.join(twice)} would be one name for several constants")
    for file in (*_in_order(files), stub):
        written, declared = _with_arrays(_without_imports(file.read_text()), declared)
        source += written + "\n\n"
    (scratch / module).parent.mkdir(parents=True, exist_ok=True)
    for package in Path(module).parents[:-1]:
        (scratch / package / "__init__.py").touch()
    (scratch / f"{module}.py").write_text(source.replace('SOURCE = ""', f'SOURCE = "{known}"', 1))
    (scratch / f"{module}.pxd").write_text(declared)
    return known


def _constants(file: Path) -> list[str]:
    """The names that a file gives to values."""
    given = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
    return [
        name.id
        for node in given
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    ]


def _in_order(files: list[Path]) -> list[Path]:
    """Files, each after those that it imports."""
    names = {file.stem: file for file in files}
    imports = {
        file.stem: {
            name
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.ImportFrom) and node.module
            for name in [node.module.rpartition(".")[2]]
            if name in names
        }
        for file in files
    }
    return [names[name] for name in TopologicalSorter(imports).static_order()]


def _without_imports(source: str) -> str:
    """A file from the first of its own statements on: what it imports stands before it in the
    module that they become.
    """
    first = next(
        node for node in ast.parse(source).body if not isinstance(node, ast.ImportFrom | ast.Expr)
    )
    return "\n".join(source.splitlines()[first.lineno - 1 :])


def _with_arrays(source: str, types: str) -> tuple[str, str]:
    """The arrays that a class declares go over into the types, and the loop that takes them by name
    becomes a line for each.
    """
    lines = source.splitlines()
    for made in ast.parse(source).body:
        arrays = {
            each.target.id: each
            for each in getattr(made, "body", ())
            if isinstance(each, ast.AnnAssign)
        }
        if not isinstance(made, ast.ClassDef) or not arrays:
            continue
        declared = [f"    cdef {TYPES[each.annotation.id]} {name}" for name, each in arrays.items()]
        types = re.sub(
            rf"(cdef class {made.name}(\(\w+\))?:)", "\n".join([r"\1", *declared]), types
        )
        taking = next(each for each in ast.walk(made) if isinstance(each, ast.For))
        for each in (*arrays.values(), taking):
            lines[each.lineno - 1 : each.end_lineno] = [""] * (each.end_lineno - each.lineno + 1)
        lines[taking.lineno - 1] = "\n".join(
            [f"        self.{name} = cells['{name}']" for name in arrays]
        )
    return "\n".join(lines), types
