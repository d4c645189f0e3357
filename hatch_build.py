"""Compiles hosim/engine/loop*.py at installation. Without a compiler the wheel is pure, and the
loop runs interpreted.
"""

import ast
import os
import sys
import sysconfig
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = Path("hosim") / "engine"
NAME = "compiled_loop"
FILES = (
    "loop_cells",
    "loop_transfers",
    "loop_ops",
    "loop",
    "loop_graph",
)
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
            built = compile_loop(Path(self.root), checked=wish == "checked")
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
        build_data["artifacts"].append(
            "/" + built.relative_to(self.root).as_posix()
        )  # an editable installation imports it from there


def compile_loop(root: Path, checked: bool = False) -> Path:
    """Compile the files of the loop as one module beside them; the extension knows the hash of what
    it was made from.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    types = root / ENGINE / f"{NAME}.pxd"
    known = sha256(
        b"".join([file.read_bytes() for file in (*sorted((root / ENGINE).glob("loop*.py")), types)])
    ).hexdigest()
    source, declared = "", types.read_text()
    for name in FILES:
        written, declared = _with_arrays(
            _without_imports((root / ENGINE / f"{name}.py").read_text()), declared
        )
        source += written + "\n\n"
    source += "Extension, GraphExtension = Loop, LoopGraph\n"
    directives = DIRECTIVES | {"language_level": 3, "boundscheck": checked}
    with tempfile.TemporaryDirectory() as scratch:
        there = Path(scratch) / ENGINE
        there.mkdir(parents=True)
        for package in (there, there.parent):
            (package / "__init__.py").touch()
        (there / f"{NAME}.py").write_text(source.replace('SOURCE = ""', f'SOURCE = "{known}"', 1))
        (there / types.name).write_text(declared)
        flags = ["/O2"] if sys.platform == "win32" else ["-O1", "-g0"]
        before = Path.cwd()
        os.chdir(scratch)
        try:
            extension = Extension(
                f"hosim.engine.{NAME}", [str(ENGINE / f"{NAME}.py")], extra_compile_args=flags
            )
            modules = cythonize([extension], compiler_directives=directives, quiet=True)
            command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
            command.build_temp, command.build_lib = scratch, str(root)
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
    return root / ENGINE / (NAME + sysconfig.get_config_var("EXT_SUFFIX"))


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
        types = types.replace(
            f"cdef class {made.name}:", "\n".join([f"cdef class {made.name}:", *declared])
        )
        taking = next(each for each in ast.walk(made) if isinstance(each, ast.For))
        for each in (*arrays.values(), taking):
            lines[each.lineno - 1 : each.end_lineno] = [""] * (each.end_lineno - each.lineno + 1)
        lines[taking.lineno - 1] = "\n".join(
            [f"        self.{name} = cells['{name}']" for name in arrays]
        )
    return "\n".join(lines), types
