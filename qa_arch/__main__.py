"""``python -m qa_arch``: the same as ``qa-arch``."""

import sys

from qa_arch.cli.main import main

sys.exit(main())
