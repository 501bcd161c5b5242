"""jambonz: its media leg, and its form of text to speech for bots."""
