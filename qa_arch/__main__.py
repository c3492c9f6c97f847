"""``python -m qa_arch``: the same as ``qa-arch``."""

import sys

from qa_arch.cli.main import main

if __name__ == "__main__":  # a config's _target_ could import this module
    sys.exit(main())
