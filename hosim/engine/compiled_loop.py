"""In the place of the extension of this name, where it could not be compiled: the loop as it is."""

from hosim.engine.loop import Loop
from hosim.engine.loop_graph import LoopGraph

SOURCE = ""
"""Of the extension: the hash of what it was compiled from."""

Extension, GraphExtension = Loop, LoopGraph
