"""Faults in the inspection of attention."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="attention over the wrong axis", at="reading:attention_weights",
          test="test_probabilities_follow_the_formula_by_layer_and_head",
          old="tuple(weights.float() for weights in layers)",
          new="tuple((weights.float().transpose(-1, -2) for weights in layers))"),
    Fault(name="the model keeps eager attention", at="reading:attention_weights",
          test="test_rows_sum_to_one_over_real_tokens_and_the_encoder_is_unchanged",
          old="implementation = backbone.config._attn_implementation", new='implementation = "eager"'),
    Fault(name="sparse attention shown as full", at="reading:attention_weights",
          test="test_encoders_without_full_attention_are_refused",
          old="weights.shape != (B, weights.shape[1], T, T)", new="False"),
    Fault(name="attention of another head", at="AttentionLayer.head",
          test="test_json_holds_all_weights",
          old="self.weights[self.heads.index(name)]", new="self.weights[-1 - self.heads.index(name)]"),
    Fault(name="the share crossing is that of special tokens", at="AttentionLayer.crossing",
          test="inspection/test_inspection",
          old="_is_part(self.columns, attended)", new='_is_part(self.columns, "special")'),
    Fault(name="rows and columns swapped on the page", at="layers:_button",
          test="inspection/test_inspection",
          old='("xaxis", layer.columns), ("yaxis", layer.rows)',
          new='("xaxis", layer.rows), ("yaxis", layer.columns)'),
)
