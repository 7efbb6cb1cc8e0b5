"""`python -m anyorder`, for launchers that want a module."""

import sys

from anyorder.cli import main

sys.exit(main())
