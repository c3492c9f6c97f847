"""Faults in the fused kernels and their proof."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="kernel attends to padding", at="forward_kernel", test="test_fused_recurrence",
          old='tl.where(real, block, float("-inf"))', new='tl.where(valid_q, block, float("-inf"))'),
    Fault(name="kernel runs forward twice", at="forward_kernel", test="test_fused_recurrence",
          old="tl.where(row % 2 == 0, t, back)", new="tl.where(row % 2 == 0, t, t + 0 * back)"),
    Fault(name="kernel loses the gradient of earlier cell states", at="backward_kernel",
          test="test_fused_recurrence",
          old="valid & (t < C - 1)", new="valid & (t < 0)"),
    Fault(name="more kernel programs than are resident", at="launch", test="test_fused_recurrence",
          old="min(resident, groups - group0)", new="groups - group0"),
)
