"""Faults in prompting language models."""

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="shots from the scored articles", at="prompts:draw_shots",
          test="test_shots_depend_on_the_seed_and_never_come_from_a_scored_set",
          old="e.title not in titles and e.context not in passages", new="True"),
    Fault(name="the end token costs nothing", at="LocalModel._generate",
          test="test_greedy_answers_and_null_odds_match_the_reference",
          old="self._end(state.next)", new="0"),
    Fault(name="positions count padding", at="LocalModel._read_prompts",
          test="test_batched_prompts_are_answered_as_single_ones",
          old="(mask.cumsum(1) - 1).clamp(min=0)", new="torch.arange(mask.shape[1]).expand_as(mask)"),
    Fault(name="a continuation changes the shared cache", at="_State.select",
          test="test_greedy_answers_and_null_odds_match_the_reference",
          old="deepcopy(self.cache)", new="self.cache"),
    Fault(name="spans end within words", at="LocalModel._spans_from",
          test="test_likeliest_span_matches_an_exhaustive_search",
          old="span and span[-1].isalnum() and not after.isalnum()", new="span"),
    Fault(name="answers to another prompt are resumed", at="command:_check_prompt",
          test="test_interrupted_call_resumes_and_sets_share_the_calibration",
          old="recorded.get(key) != prompt[key]", new="False"),
    Fault(name="a key follows a redirect", at="_NoRedirect",
          test="test_permanent_errors_are_reported",
          old="return None", new="return super().redirect_request(*_)"),
)
