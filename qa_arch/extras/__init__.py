"""Capabilities that someone can do without: each folder can be deleted (see ``qa_arch.manifest``)."""
