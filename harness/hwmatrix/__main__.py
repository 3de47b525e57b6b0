"""``python -m hwmatrix`` is the command ``hwmatrix``."""

import sys

from hwmatrix.cli.main import main

sys.exit(main())
