"""Speech and marks from the server, paced frame by frame; shared by AudioSocket and RTP calls."""
