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
settings.register_profile("stark", max_examples=50, deadline=None)
settings.load_profile("stark")
