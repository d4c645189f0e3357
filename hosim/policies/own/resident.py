"""``resident``: everything in the device tier, as frameworks do it by default.

A tensor in a lower tier is prefetched once, at time 0, in the order of first uses; one that no op
uses stays where it is. What the step writes of it is stored back after its last write (rule 2); a
clean copy below just stays. What is at home in the device tier never moves.
"""

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import insert


def plan(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
    """The plan; it ignores ``budget_bytes``: the replay says whether everything fits."""
    return insert(graph, hardware, "resident", ())
