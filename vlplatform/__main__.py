"""``python -m vlplatform`` is ``vlp``."""

import sys

from vlplatform.cli.main import main

sys.exit(main())
