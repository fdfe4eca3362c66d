"""What every suite has in common: ``strategies`` on the path, and how hypothesis runs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Outside the repository, where pytest would come across it when it collects.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "stark-hypothesis"))

# No deadline: how long an example takes is no property of the code on a busy machine.
# The same examples every time, so that a change is judged by what it changes; others are sought on purpose with
# --hypothesis-profile=explore.
settings.register_profile("stark", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("stark")
