"""Faults in compression."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="the most important are removed", at="pruning:lowest",
          test="test_removing_units_or_heads_equals_zeroing_them",
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
    Fault(name="nothing is pruned without training", at="pruning:change",
          test="test_record_states_the_step_and_the_settings_of_the_parent",
          old="prune(parts.model, target)", new="pass"),
    Fault(name="an epoch of lower sparsity is selected", at="Compression.settings",
          test="test_record_states_the_step_and_the_settings_of_the_parent",
          old='"trainer.select": "last",', new=""),
    Fault(name="a model is made no smaller", at="pruning:check",
          test="test_invalid_requests_are_refused_before_any_work",
          old="step.keep >= most", new="step.keep > most"),
)
