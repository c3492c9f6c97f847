"""Faults in smaller models."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="the least important stay", at="structured:lowest", test="compression/test_structured",
          old="_s.argsort(descending=True, stable=True)",
          new="_s.argsort(stable=True)"),
    Fault(name="importance that cancels between windows", at="structured:accumulate_into",
          test="test_importance_is_the_derivative_of_each_windows_loss",
          old="_x.sum(2).abs().sum(0)",
          new="_x.sum(2).sum(0).abs()"),
    Fault(name="stored whole numbers without their scale", at="dequantised",
          test="test_read_in_another_precision_it_is_what_was_rounded",
          old="_v * _s[_n + SCALE][:, None]",
          new="_v.float()"),
    Fault(name="pruned weights grow again", at="HoldZeros.hold",
          test="test_zeros_hold_through_training_saving_and_loading",
          old="apply_masks(self.weights, self.masks)",
          new=""),
    Fault(name="masks forgotten on resuming", at="HoldZeros.load_state_dict",
          test="test_a_training_that_broke_off_goes_on_where_it_stopped",
          old='(_s[_k] for _k in ("masks", "first", "reached"))',
          new="(self.masks, self.first, self.reached)"),
    Fault(name="a recovery without dropout", at="make_trainable",
          test="test_the_recovery_is_the_parents_training_but_for_epochs_and_rate",
          old="_p.model.train()",
          new=""),
    Fault(name="a closed dev set scored by compress", at="compression.runs:open_sets",
          test="test_a_closed_dev_set_stays_closed",
          old="_d.dev is not None and _d.open_dev",
          new="_d.dev is not None"),
    Fault(name="a student is pruned and trained again without its teacher", at="compression.runs:_make",
          test="test_a_student_goes_on_learning_from_its_teacher_and_from_no_other",
          old="_k.with_teacher(_c, _p, _t)",
          new="_p"),
)
