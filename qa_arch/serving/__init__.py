"""A trained model that is asked: in Python, on the command line, over HTTP, on a page."""
