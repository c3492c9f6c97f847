"""Files that ``qa-arch new-model`` copies and renames; typed and tested like all other code."""
