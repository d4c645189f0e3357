"""``python -m hosim.gpu``."""

import sys

from hosim.gpu.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
