"""Scores of predictions: the SQuAD evaluations, null margins, ranking; no torch, no numpy."""
