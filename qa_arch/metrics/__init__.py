"""Metrics: the SQuAD evaluations, null thresholds, confidence, error analysis, significance. No torch."""
