"""`python -m cuevo`, for where the `cuevo` script is not on the path."""

import sys

from cuevo.cli import main

# Processes that are spawned import it, too.
if __name__ == "__main__":
    sys.exit(main())
