"""Where programs that tests start find their modules: this repository, and the tests' helpers as `tests.support.x`."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])
