"""Faults in compression."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="the most important are removed", at="pruning:lowest", test="compression/test_structured",
          old="scores.argsort(descending=True, stable=True)", new="scores.argsort(stable=True)"),
    Fault(name="importance cancels out between windows", at="pruning:accumulate_into",
          test="test_importance_is_the_gate_gradient_of_each_windows_loss",
          old="of_columns.unflatten(1, (-1, size)).sum(2).abs().sum(0)",
          new="of_columns.unflatten(1, (-1, size)).sum(2).sum(0).abs()"),
    Fault(name="pruned weights grow back", at="HoldZeros.hold",
          test="test_zeros_persist_through_training_saving_and_loading",
          old="apply_masks(self.weights, self.masks)", new="pass"),
    Fault(name="masks forgotten on resuming", at="HoldZeros.load_state_dict",
          test="test_interrupted_training_resumes_where_it_stopped",
          old='(state_dict[key] for key in ("masks", "first", "reached"))',
          new="(self.masks, self.first, self.reached)"),
    Fault(name="a recovery without dropout", at="make_trainable",
          test="test_recovery_repeats_the_parents_training_except_epochs_and_rate",
          old="parts.model.train()", new="pass"),
    Fault(name="a closed dev set scored by compress", at="compression.runs:open_sets",
          test="test_compress_keeps_a_closed_dev_set_closed",
          old="data.dev is not None and data.open_dev", new="data.dev is not None"),
    Fault(name="a student recovers without its teacher", at="compression.runs:_make",
          test="test_student_recovers_with_its_own_teacher_only",
          old="with_teacher(config, parts, teacher)", new="parts"),
)
