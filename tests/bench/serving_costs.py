"""What serving costs: an iteration among many requests as one among few, and two processes at least
one and a half times one.

Both in CPU time, the second as in ``sweep_costs.py``.
"""

from time import process_time

from measures import cpu_seconds, measure
from sweep_rate import cpu_of_children

import hosim

RATE = 1.5
"""Two processes to one, at least."""
DRAWN = "poisson:rate=10:count=200:prompt=100..1000:output=100"

GROWTH = 1.25
"""What an iteration may cost among eight times as many requests."""


@measure(
    "CPU for an iteration of 8,000 requests with a cache in DDR below, in one of 1,000", most=GROWTH
)
def grown() -> float:
    def an_iteration(count: int) -> float:
        drawn = f"poisson:rate=2:count={count}:prompt=500..4000:output=20..100"
        found = []
        model = {"model": "llama-3.1-8b", "tensor": 8}
        spent = cpu_seconds(
            lambda: found.append(
                hosim.serve(model, "h100-80gb-sxm", drawn, blocks=4000, kv="write_through")
            )
        )
        return spent / len(found[0].samples)

    an_iteration(10)  # imports
    few, many = (
        [an_iteration(count) for _ in range(rounds)] for count, rounds in ((1000, 3), (8000, 1))
    )
    return min(many) / min(few)


@measure(
    "CPU for a point of serving in a pool of two processes, asking included, in points of one "
    "process",
    most=2 / RATE,
)
def pooled() -> float:
    # two cores give 2 / this times the rate of one
    def swept(jobs: int, points: int) -> object:
        rates = [5 * (1 + i) for i in range(points)]
        return hosim.serve_sweep(
            "llama-3.1-8b", "h100-80gb-sxm", DRAWN, vary={"requests.rate": rates}, jobs=jobs
        )

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
