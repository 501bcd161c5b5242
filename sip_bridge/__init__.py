"""The PBX side: telephone calls of Asterisk become media legs of a telephony-tts server. A process of its own."""
