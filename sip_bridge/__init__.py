"""Calls of Asterisk and FreeSWITCH become media legs of a telephony-tts server, in a process of its own."""
