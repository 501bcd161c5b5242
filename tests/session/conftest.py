"""With this file pytest puts the folder on the import path, so that the tests in `caller` find `world.py`."""
