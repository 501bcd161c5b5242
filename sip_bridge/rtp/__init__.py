"""RTP: packets, codecs, concealment of lost packets."""
