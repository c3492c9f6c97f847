"""Trained span models in the forms that others read: a Hugging Face folder, an ONNX graph."""
