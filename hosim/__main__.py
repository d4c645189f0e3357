"""``python -m hosim`` is the program ``hosim``."""

from hosim.cli.start import main

if __name__ == "__main__":
    main()
