"""Optional capabilities: each folder can be deleted (see ``qa_arch.manifest``)."""
