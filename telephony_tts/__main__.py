"""`python -m telephony_tts` is the command `telephony-tts`."""

import sys

from telephony_tts.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
