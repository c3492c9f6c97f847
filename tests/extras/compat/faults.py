"""Faults in the names of transformers 4."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="compat answers by their case", at="QuestionAnsweringPipeline.__call__",
          test="test_equal_answers_of_several_places_are_one",
          old="_t.lower()",
          new="_t"),
    Fault(name="compat no-answer of the likeliest window", at="QuestionAnsweringPipeline.__call__",
          test="test_no_answer_has_its_lowest_probability",
          old="min(_n[_r], _s)",
          new="max(_n[_r], _s)"),
    Fault(name="compat threshold without the unpredicted", at="compat.squad_metrics:find_best_thresh",
          test="test_a_question_without_a_prediction",
          old="sum(not _h for _h in _q.values())",
          new="sum(not _q[_h] for _h in scores)"),
    Fault(name="compat context of a token at its richer side", at="compat.squad:max_context",
          test="test_windows_of_wordpiece",
          old="min(_p - _s[0], _x)",
          new="max(_p - _s[0], _x)"),
)
