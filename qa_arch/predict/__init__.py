"""A trained run as a callable: shared by evaluation, the command line and everything that serves."""

from qa_arch.predict.ensemble import load_ensemble
from qa_arch.predict.predictor import Predictor, load
from qa_arch.predict.reading import read_out
from qa_arch.predict.selection import SelectionPredictor

__all__ = ["Predictor", "SelectionPredictor", "load", "load_ensemble", "read_out"]
