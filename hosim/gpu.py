"""``python -m hosim.gpu``: the kit for GPU machines, :mod:`hosim.on_torch.gpu`."""

from hosim.working_folder import look_for_no_modules_there

if __name__ == "__main__":
    look_for_no_modules_there()
    import sys

    from hosim.on_torch.gpu.command import main

    sys.exit(main(sys.argv[1:]))
