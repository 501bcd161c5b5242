"""Messages, and the codecs of the native protocol; what vendors' codecs share."""
