"""Faults in the fused kernels and their proof."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="kernel attends to padding", at="_attend", test="test_fused_recurrence",
          old='tl.where(real, _s, float("-inf"))',
          new='tl.where(valid_q, _s, float("-inf"))'),
    Fault(name="kernel runs forward twice", at="_project_and_score", test="test_fused_recurrence",
          old="tl.where(_r % 2 == 0, _t, _b)",
          new="tl.where(_r % 2 == 0, _t, _t + 0 * _b)"),
    Fault(name="kernel loses the gradient of earlier cell states", at="_backward_gates",
          test="test_fused_recurrence",
          old="_h & (_t < _c - 1)",
          new="_h & (_t < 0)"),
    Fault(name="more kernel programs than are resident", at="launch", test="test_fused_recurrence",
          old="min(_p, _g - _f)",
          new="_g - _f"),
)
