"""A package outside qa_arch that adds a command, a recipe with a model and settings, and a table column."""
