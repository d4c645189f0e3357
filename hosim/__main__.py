"""``python -m hosim`` is the program ``hosim``."""

from hosim.working_folder import look_for_no_modules_there

if __name__ == "__main__":
    look_for_no_modules_there()
    from hosim.cli.start import main

    main()
