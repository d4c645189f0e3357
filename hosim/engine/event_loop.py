"""The form of the event loop that runs: the compiled extension, or its source interpreted."""

from hosim.engine import compiled_loop, loop, loop_graph
from hosim.engine.cells import COMPILED

Loop: type[loop.Loop] = vars(compiled_loop)["Loop"] if COMPILED else loop.Loop
GraphLoop: type[loop_graph.LoopGraph] = (
    vars(compiled_loop)["LoopGraph"] if COMPILED else loop_graph.LoopGraph
)
