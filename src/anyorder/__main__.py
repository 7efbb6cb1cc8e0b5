"""`python -m anyorder`, for launchers that want a module."""

import sys

from anyorder.cli import main

if __name__ == "__main__":
    sys.exit(main())
