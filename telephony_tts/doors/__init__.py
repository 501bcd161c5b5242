"""One folder for each carrier and vendor whose protocol the server speaks."""
