"""``python -m hosim.record``, or ``python hosim/record`` where hosim is not installed."""

import importlib
import importlib.util
import sys
from pathlib import Path

if __package__:
    from .command import main
else:
    # Run as a folder: it becomes a package under its own name, so that its files shadow no other modules.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.util.spec_from_file_location("hosim_record", here / "__init__.py")
    assert spec is not None
    sys.modules["hosim_record"] = importlib.util.module_from_spec(spec)
    main = importlib.import_module("hosim_record.command").main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
