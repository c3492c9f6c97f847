"""Question answering with a trained model: in Python, on the command line, over HTTP, in a web page."""
