"""The version of hosim, on the lowest floor: files below the public names write it into what they
make.
"""

__version__ = "0.2.0"
