"""`python -m fedsuv_plugin.cli` is `fedsuv`."""

import sys

from fedsuv_plugin.cli import main

sys.exit(main())
