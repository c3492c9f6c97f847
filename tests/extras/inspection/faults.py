"""Faults in the inspection of attention."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="attention over the wrong axis", at="reading:attention_weights",
          test="test_attention_weights",
          old="tuple(_w.float() for _w in _l)",
          new="tuple(_w.float().transpose(-1, -2) for _w in _l)"),
    Fault(name="the model keeps eager attention", at="reading:attention_weights",
          test="test_attention_weights",
          old="_i = _b.config._attn_implementation",
          new="_i = 'eager'"),
    Fault(name="sparse attention shown as full", at="reading:attention_weights",
          test="test_attention_weights",
          old="_w.shape != (_n, _w.shape[1], _t, _t)",
          new="False"),
    Fault(name="attention of another head", at="AttentionLayer.head",
          test="test_json_holds_all_weights",
          old="self.weights[self.heads.index(_n)]",
          new="self.weights[-1 - self.heads.index(_n)]"),
    Fault(name="the passage attends to the passage", at="AttentionLayer.over_question",
          test="inspection/test_inspection",
          old='_f(self.columns, "question")',
          new='_f(self.columns, "passage")'),
    Fault(name="rows and columns swapped on the page", at="qa_arch/extras/inspection/page/inspection.js",
          test="test_inspection_browser",
          old="attends ? at(row, i) : at(i, column)",
          new="attends ? at(i, column) : at(row, i)"),
)
