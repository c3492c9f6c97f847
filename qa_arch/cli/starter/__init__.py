"""What ``qa-arch new-model`` writes, under other names: code that is typed and checked like the rest."""
