"""``python -m samovar.runtime.cli``: the same as the console script."""

import sys

from .entry import main

sys.exit(main())
