"""Compiles hosim/engine/loop*.py at installation. Without a compiler the wheel is pure, and the loop runs interpreted."""

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
FILES = ("loop_cells", "loop_memory", "loop_transfers", "loop_ops", "loop")
DIRECTIVES = {
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "binding": False,
    "annotation_typing": False,
}


class CompiledLoop(BuildHookInterface):
    """``HOSIM_COMPILE``: ``never`` skips it, ``required`` fails where it cannot be done, ``checked`` is that with checks of bounds."""

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
            print(f"hosim: no compiled loop ({type(error).__name__}); simulations will run interpreted", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append("/" + built.relative_to(self.root).as_posix())  # an editable installation imports it from there


def compile_loop(root: Path, checked: bool = False) -> Path:
    """Compile the files of the loop as one module beside them; the extension knows the hash of what it was made from."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    types = root / ENGINE / f"{NAME}.pxd"
    known = sha256(b"".join([file.read_bytes() for file in (*sorted((root / ENGINE).glob("loop*.py")), types)])).hexdigest()
    source = "\n\n".join([_without_imports((root / ENGINE / f"{name}.py").read_text()) for name in FILES] + ["Extension = Loop\n"])
    directives = DIRECTIVES | {"language_level": 3, "boundscheck": checked}
    with tempfile.TemporaryDirectory() as scratch:
        there = Path(scratch) / ENGINE
        there.mkdir(parents=True)
        for package in (there, there.parent):
            (package / "__init__.py").touch()
        (there / f"{NAME}.py").write_text(source.replace('SOURCE = ""', f'SOURCE = "{known}"', 1))
        (there / types.name).write_bytes(types.read_bytes())
        flags = ["/O2"] if sys.platform == "win32" else ["-O1", "-g0"]
        before = Path.cwd()
        os.chdir(scratch)
        try:
            extension = Extension(f"hosim.engine.{NAME}", [str(ENGINE / f"{NAME}.py")], extra_compile_args=flags)
            modules = cythonize([extension], compiler_directives=directives, quiet=True)
            command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
            command.build_temp, command.build_lib = scratch, str(root)
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
    return root / ENGINE / (NAME + sysconfig.get_config_var("EXT_SUFFIX"))


def _without_imports(source: str) -> str:
    """A file from the first of its own statements on: what it imports stands before it in the module that they become."""
    first = next(node for node in ast.parse(source).body if not isinstance(node, ast.ImportFrom | ast.Expr))
    return "\n".join(source.splitlines()[first.lineno - 1 :])
