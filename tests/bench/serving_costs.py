"""Two processes do at least one and a half times as many points of a sweep over serving as one, in CPU time as in ``sweep_costs.py``."""

from time import process_time

from measures import cpu_seconds, measure
from sweep_rate import cpu_of_children

import hosim

RATE = 1.5
"""Two processes to one, at least."""
DRAWN = "poisson:rate=10:count=200:prompt=100..1000:output=100"


@measure("CPU for a point of serving in a pool of two processes, asking included, in points of one process", most=2 / RATE)
def pooled() -> float:
    # two cores give 2 / this times the rate of one
    def swept(jobs: int, points: int) -> object:
        rates = [5 * (1 + i) for i in range(points)]
        return hosim.serve_sweep("llama-3.1-8b", "h100-80gb-sxm", DRAWN, vary={"requests.rate": rates}, jobs=jobs)

    swept(2, 2)  # starts the processes, which then wait for more
    swept(1, 1)  # imports
    begin = process_time()
    one = swept(1, 8)
    alone = process_time() - begin
    before = cpu_of_children()
    found = []
    asking = cpu_seconds(lambda: found.append(swept(2, 8)))
    assert one.equals(found[0])
    return (cpu_of_children() - before + asking) / alone
