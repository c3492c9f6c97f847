"""Scores of predictions: the SQuAD evaluations, null margins, ranking, text metrics; no torch, no numpy.

The libraries behind BLEU, ROUGE and METEOR load numpy; they are imported when one of these is asked for.
"""
