"""In the place of the extension of this name, where it could not be compiled: the loop runs as it is."""

SOURCE = ""
"""Of the extension: the hash of what it was compiled from."""
