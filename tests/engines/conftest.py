"""Empty: with this file pytest puts the folder on the path, so that subfolders can import `conformance`."""
