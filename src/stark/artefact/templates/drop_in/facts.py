"""The facts of one kernel, which STARK writes here."""

from __future__ import annotations

from typing import Any

import torch

TASK, KERNEL, ORIGINAL = "", "", "class Model: pass"
JUDGED = "for inputs of 1 only"
DEVICE, CAST, DTYPES = "cpu", None, (torch.float32,)
SHAPES: tuple[tuple[int, ...], ...] = ((1,),)
SIZES: tuple[tuple[tuple[tuple[int, int], ...], int, int], ...] = ()
CONSTRUCTED: dict[str, Any] = {"list": []}
ARGUMENTS: dict[str, Any] = {"list": [{"tensor": 0}]}
RESULT: dict[str, Any] = {"tensor": 0}
IS_RANDOM = CHANGES_STATE = False
