"""Faults in prompting language models."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="shots from the scored articles", at="prompts:draw_shots",
          test="test_shots_are_decided_by_the_seed_and_never_from_a_scored_set",
          old="_e.title not in _t and _e.context not in _p",
          new="True"),
    Fault(name="the end of an answer is free", at="LocalModel._generate",
          test="test_greedy_answers_and_their_null_odds_are_those_of_a_plain_loop",
          old="torch.where(_e, self._end(_s.next), _g)",
          new="torch.where(_e, 0, _g)"),
    Fault(name="positions count padding", at="LocalModel._read_prompts",
          test="test_a_batch_answers_as_single_prompts_do",
          old="(_m.cumsum(1) - 1).clamp(min=0)",
          new="torch.arange(_m.shape[1]).expand_as(_m)"),
    Fault(name="reading on changes what others read on from", at="_State.select",
          test="test_greedy_answers_and_their_null_odds_are_those_of_a_plain_loop",
          old="deepcopy(self.cache)",
          new="self.cache"),
    Fault(name="spans end within words", at="LocalModel._spans_from",
          test="test_the_likeliest_span_is_that_of_a_search_over_all",
          old="_s and _s[-1].isalnum() and not _a.isalnum()",
          new="span"),
    Fault(name="answers to another prompt are continued", at="command:_check_prompt",
          test="test_an_interrupted_file_goes_on_and_sets_share_the_calibration",
          old="recorded.get(_k) != prompt[_k]",
          new="False"),
    Fault(name="a key follows a redirect", at="_NoRedirect",
          test="test_what_does_not_pass_is_said",
          old="return None",
          new="return super().redirect_request(*_)"),
)
