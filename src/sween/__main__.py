"""`python -m sween`, for machines where nothing can be installed."""

import sys

from sween.cli import main

if __name__ == "__main__":
    sys.exit(main())
