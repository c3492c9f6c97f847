"""A package outside qa_arch that adds a command, a task with a model, and a table column."""
