"""``python -m multiworld``: the command ``multiworld``."""

import sys

from multiworld_command import main

if __name__ == "__main__":
    sys.exit(main())
