"""Each family of :mod:`many_families`: eager's bits, or a refusal in one line when it is captured;
peaks to the byte, and eager's own within 2 % of torch's tracker.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from many_families import NAMES, SHARES, judged  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n != "gemma3")) for n in NAMES]
)
def test_a_family(name, training):
    for budget in SHARES[:1] if training or name == "gemma3" else SHARES:
        try:
            found = judged(name, training, budget)
        except ImportError as error:
            pytest.skip(str(error))
        assert found.partition(":")[0] in ("same", "refused"), found
