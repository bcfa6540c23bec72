"""`python -m fedjax_opt.cli` is `fedjax-opt`."""

import sys

from fedjax_opt.cli.main import main

sys.exit(main())
