"""Export trained span models as a Hugging Face folder or an ONNX graph."""
