"""The folder of the stand-ins and rigs, on the import path of the tests in its subfolders."""
