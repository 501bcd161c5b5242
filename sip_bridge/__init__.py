"""The PBX side: calls of Asterisk and FreeSWITCH become media legs of a telephony-tts server, in a separate process."""
