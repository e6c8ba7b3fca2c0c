"""`python -m cuevo`, for where the `cuevo` script is not on the path."""

import sys

from cuevo.cli import main

sys.exit(main())
