"""Its place is its purpose: pytest puts the folder on the path, so that the engines' own folders find `conformance`."""
