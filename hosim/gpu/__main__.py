"""``python -m hosim.gpu``."""

from hosim.working_folder import look_for_no_modules_there

if __name__ == "__main__":
    look_for_no_modules_there()
    import sys

    from hosim.gpu.command import main

    sys.exit(main(sys.argv[1:]))
