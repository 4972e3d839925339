"""``python -m ufwatch``."""

import sys

from ufwatch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
