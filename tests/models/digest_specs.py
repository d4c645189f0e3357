"""Writes into each shipped spec of a builder the digest of the workload that it gives now: python
tests/models/digest_specs.py.
"""

from hashlib import sha256
from pathlib import Path

import yaml

from hosim.base.files import to_text
from hosim.io import load_any, workload_to_dict


def digest(path: Path) -> str:
    """SHA-256 of the workload file that a spec gives, unpacked."""
    return sha256(to_text(workload_to_dict(load_any(path))).encode()).hexdigest()


def main() -> None:
    for path in sorted((Path(__file__).parents[2] / "workloads").glob("*.yaml")):
        text = path.read_text()
        if "builder" in yaml.safe_load(text):
            kept = [line for line in text.splitlines() if not line.startswith("sha256:")]
            path.write_text("\n".join([*kept, f"sha256: {digest(path)}", ""]))


if __name__ == "__main__":
    main()
