"""Metrics: the SQuAD evaluations, null thresholds, ranking, significance, text metrics. No torch.

The libraries behind BLEU, ROUGE and METEOR are imported on first use.
"""
