"""The SQuAD metric of ``qa_arch.metrics`` for users of the ``evaluate`` library.

``evaluate.load`` takes the path of ``squad.py`` in this folder, also offline; ``load`` needs no path.
"""

from __future__ import annotations


def load(configuration: str = "2.0"):
    """The metric, with its inputs in memory: concurrent jobs share no cache file to lock."""
    from qa_arch.evaluate_metric.squad import Squad

    return Squad(config_name=configuration, keep_in_memory=True)
