"""`python -m core_lens` is `core-lens`."""

import sys

from .cli import main

sys.exit(main())
