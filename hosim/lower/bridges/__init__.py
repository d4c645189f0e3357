"""Where :mod:`hosim.formats.bridges` was: the import that its users wrote goes on working."""
