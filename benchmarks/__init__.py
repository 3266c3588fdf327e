"""What is tracked over time. Everything is lower-is-better, since asv reads a rise as a regression.

Each benchmark has a `version`: raise it when the meaning of its number changes. Inputs are
append-only. `NotImplementedError` in `setup` is asv's way to skip a case.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # scripts and benchmarks import one another alike
