"""`python -m tandem`: the same as the `tandem` command."""

import sys

from tandem.tools.cli import main

sys.exit(main())
