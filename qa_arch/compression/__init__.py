"""Smaller models, made from outside of the model: a finished run becomes another one that is smaller."""
