"""Empty: with this file pytest puts the folder on the path, so that other folders can import the stand-ins."""
