"""Faults in text metrics."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="bleu drops golds beyond the shortest list", at="bleu", test="text_metrics/test_metrics",
          old="zip_longest(*references)", new="zip(*references)"),
    Fault(name="cider counts an n-gram once per gold", at="cider", test="text_metrics/test_metrics",
          old="{gram for gold in row for n in ORDERS for gram in _grams(gold, n)}",
          new="[gram for gold in row for n in ORDERS for gram in _grams(gold, n)]"),
    Fault(name="text metrics ignore the null threshold", at="final_texts",
          test="test_text_metrics_leave_the_official_keys_unchanged",
          old='"" if null_scores.get(id_, threshold) > threshold else text', new="text"),
)
